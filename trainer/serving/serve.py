"""Serve a policy to other frameworks: OpenAI-compatible chat with tools, and token in, token out.

    gymqual serve-policy --policy mini --port 8000

Upstream's ``transformers serve`` has no token route, so the log-probabilities that trainers need would be lost.

- ``GET /v1/models`` names the model and its longest context.
- ``POST /v1/chat/completions`` renders messages by the policy's template, streams on request and parses tool calls.
- ``POST /inference/v1/generate`` takes and returns ids (vLLM's route): nothing is tokenised in between.

Requests are answered one after another: equal requests get equal ids, whoever else asks. Loopback only.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn

from gymqual.harness.process.server import LOOPBACK, require_free
from gymqual.trainer.policy.loading import POLICY_HELP, load_policy
from gymqual.trainer.runs.command import command_parser, require_at_least_one, run_command
from gymqual.trainer.serving.server import PolicyServer

GRACE_S = 2
"""Seconds that open replies have to end when the server is stopped."""


class _Process(uvicorn.Server):
    """Says one line once it listens, and lets no reply hold up its end."""

    def __init__(self, config: uvicorn.Config, served: PolicyServer, line: str) -> None:
        super().__init__(config)
        self._served = served
        self._line = line

    async def startup(self, sockets: Any = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        if self.started:
            print(self._line, flush=True)

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop listening and let open requests end."""
        self._served.stop()
        await super().shutdown(sockets)


def main(arguments: list[str] | None = None) -> int:
    """Run the command until it is ended; returns its exit code."""
    options = _parser().parse_args(arguments)
    return run_command("serve", lambda: _serve(options))


def _serve(options: argparse.Namespace) -> int:
    # As Ctrl-C does; uvicorn raises the signal that ended it once more.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        require_at_least_one("--threads", options.threads)
        require_free(options.port)
        torch.set_num_threads(options.threads)
        policy = load_policy(options.policy, options.adapter)
        name = options.name or policy.identity.name
        served = PolicyServer(policy, name)
        config = uvicorn.Config(
            served.app(),
            host=LOOPBACK,
            port=options.port,
            log_level="warning",
            timeout_graceful_shutdown=GRACE_S,
        )
        line = f"serving {name} at http://{LOOPBACK}:{options.port}/v1, pid {os.getpid()}"
        _Process(config, served, line).run()
    except KeyboardInterrupt:
        print("serve: stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("serve", __doc__, "--policy mini --port 8000", {0: "ended by Ctrl-C or SIGTERM"})
    parser.add_argument("--policy", default="mini", help=POLICY_HELP)
    parser.add_argument("--adapter", type=Path, metavar="DIR", help="LoRA adapter on top of the policy (default: none)")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1 to listen on (required)")
    parser.add_argument("--name", metavar="MODEL", help="name the model is asked for by (default: the policy's)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
