"""Upstream's own agent and model server in front of a scripted model: three plain processes, no Ray.

The model is scripted, so a reward reached this way says that the routes work, never how good a model is.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from gyms.base import Script
from gyms.nemo import rows
from gyms.nemo.launch import INSTANCE
from harness.process import LOOPBACK, Launch, Server, start_server
from harness.run import Run
from harness.services import NemoService

LIMIT_S = 120.0


class ScriptedModel:
    """An OpenAI Responses endpoint that plays one script, a turn a request."""

    def __init__(self) -> None:
        self.script = Script("noop", (), None)
        self.requests: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = json.dumps(model.respond(body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing: requests are kept."""

        self._http = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._http.server_port}/v1"

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the script's next turn: a call, or after the last one the final message."""
        self.requests.append(body)
        turn = sum(item.get("type") == "function_call_output" for item in body["input"])
        if turn < len(self.script.calls):
            call = self.script.calls[turn]
            item = {"type": "function_call", "call_id": f"call_{turn}", "name": call.tool, "arguments": call.arguments}
        else:
            text = {"type": "output_text", "text": self.script.answer or "", "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        return {
            "id": f"response_{turn}",
            "created_at": 0,
            "model": "scripted",
            "object": "response",
            "output": [item],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }

    @contextmanager
    def serving(self) -> Iterator["ScriptedModel"]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join(timeout=10)


@dataclass
class UpstreamAgent:
    """Upstream's simple agent wired to a resources server and a scripted model."""

    run: Run
    service: NemoService
    model: ScriptedModel
    servers: list[Server] = field(default_factory=list)

    def start(self, folder: Path) -> None:
        """Start upstream's model server and agent, each a plain process with an injected configuration."""
        model: dict[str, Any] = {"entrypoint": "app.py", "openai_base_url": self.model.url, "openai_api_key": "none"}
        agent: dict[str, Any] = {
            "entrypoint": "app.py",
            "resources_server": {"type": "resources_servers", "name": INSTANCE},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        resources = {"entrypoint": "app.py", "host": LOOPBACK, "port": self.service.server.port, "domain": "agent"}
        config: dict[str, Any] = {
            "head_server": {"host": LOOPBACK, "port": 1},
            "dry_run": False,
            INSTANCE: {"resources_servers": {INSTANCE: resources}},
        }
        for name, kind, implementation, settings in (
            ("policy_model", "responses_api_models", "openai_model", model | {"openai_model": "scripted"}),
            ("simple_agent", "responses_api_agents", "simple_agent", agent),
        ):
            settings |= {"host": LOOPBACK}
            config[name] = {kind: {implementation: settings}}
            server = self._start(name, kind, implementation, config, settings, folder)
            settings["port"] = server.port
            self.servers.append(server)

    def _start(
        self, name: str, kind: str, implementation: str, config: dict[str, Any], settings: dict[str, Any], folder: Path
    ) -> Server:
        python = Path(self.run.stack("nemo").python)
        (packages,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
        entry = packages / kind / implementation / "app.py"

        def launch(port: int) -> Launch:
            settings["port"] = port
            injected = {"NEMO_GYM_CONFIG_PATH": name, "NEMO_GYM_CONFIG_DICT": json.dumps(config)}
            quiet = {"NEMO_GYM_OTEL_ENABLED": "0", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}
            return Launch((str(python), "-P", str(entry)), {**injected, **quiet})

        def identify(server: Server) -> tuple[str, int]:
            # Upstream's servers know no nonce; that our own child listens on the port has been seen already.
            httpx.get(f"{server.url}/healthz", trust_env=False, timeout=30.0).raise_for_status()
            return self.run.owner.nonce, server.pid

        return start_server(name, launch, identify, owner=self.run.owner, folder=folder / name)

    def play(self, task_id: str, script: Script) -> dict[str, Any]:
        """Let upstream's agent run one rollout of the task; return its verify response."""
        self.model.script = script
        row = {**rows.row(task_id, self.service.identity.core), "_ng_task_index": 0, "_ng_rollout_index": 0}
        answer = httpx.post(f"{self.servers[-1].url}/run", json=row, trust_env=False, timeout=LIMIT_S)
        return answer.raise_for_status().json()

    def stop(self) -> None:
        """Stop both processes."""
        for server in self.servers:
            server.stop()
