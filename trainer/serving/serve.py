"""Serve a policy to other frameworks: OpenAI-compatible chat with tools, and token in, token out.

    gymqual serve-policy --policy mini --port 8000

Upstream's ``transformers serve`` has no token route, so the log-probabilities that trainers need would be lost.

- ``GET /v1/models`` names the model and its longest context.
- ``POST /v1/chat/completions`` renders messages by the policy's template, streams on request and parses tool calls.
- ``POST /inference/v1/generate`` takes and returns ids (vLLM's route): nothing is tokenised in between.

Requests are answered one after another: equal requests get equal ids, whoever else asks. Loopback only.
"""

import os
import signal
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from cyclopts import Parameter

from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.process.server import LOOPBACK, require_free
from gymqual.trainer.policy.loading import POLICY_HELP, load_policy
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


def command(
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1 to listen on.")],
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    adapter: Annotated[Path | None, Parameter(help="LoRA adapter on top of the policy.")] = None,
    name: Annotated[str | None, Parameter(help="Name the model is asked for by; the policy's without it.")] = None,
    threads: Annotated[int, Parameter(help="Threads of torch.")] = 1,
) -> None:
    """Serve a policy to other frameworks, on loopback, until Ctrl-C or SIGTERM."""
    # As Ctrl-C does; uvicorn raises the signal that ended it once more.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        require_at_least_one("--threads", threads)
        require_free(port)
        torch.set_num_threads(threads)
        loaded_policy = load_policy(policy, adapter)
        name = name or loaded_policy.identity.name
        served = PolicyServer(loaded_policy, name)
        config = uvicorn.Config(
            served.app(),
            host=LOOPBACK,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=GRACE_S,
        )
        line = f"serving {name} at http://{LOOPBACK}:{port}/v1, pid {os.getpid()}"
        _Process(config, served, line).run()
    except KeyboardInterrupt:
        print("serve: stopped")
