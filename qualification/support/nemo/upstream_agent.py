"""Upstream's own agent and model server in front of a scripted model: three plain processes, no Ray.

The model is scripted, so a reward reached this way says that the routes work, never how good a model is.
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from gymqual.gyms.base import Script
from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.nemo import rows
from gymqual.gyms.nemo.launch import INSTANCE
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import LOOPBACK, READY_LIMIT_S, Launch, Server, child_environment, start_server
from gymqual.harness.records.errors import ServerFailed
from gymqual.harness.stacks.services import GymService
from gymqual.harness.stacks.staging import Subject

LIMIT_S = 120.0
COMPONENTS = (
    "resources_servers/german_orders",
    "responses_api_agents/simple_agent",
    "responses_api_models/openai_model",
    "environment_servers/legacy_agent",
)
"""Upstream's names of the servers that ``gym env start`` starts for the staged configuration."""


class ScriptedModel:
    """An OpenAI Responses endpoint that plays scripts, a turn a request."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        """The script to play, by the question that opens the conversation."""
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
        script = self.scripts[next(item["content"] for item in body["input"] if item.get("role") == "user")]
        turn = sum(item.get("type") == "function_call_output" for item in body["input"])
        if turn < len(script.calls):
            call = script.calls[turn]
            item = {"type": "function_call", "call_id": f"call_{turn}", "name": call.tool, "arguments": call.arguments}
        else:
            text = {"type": "output_text", "text": script.answer or "", "annotations": []}
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


QUIET = {"NEMO_GYM_OTEL_ENABLED": "0", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}


@dataclass
class UpstreamAgent:
    """Upstream's simple agent wired to a resources server and a scripted model."""

    run: Run
    service: GymService
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
            return Launch((str(python), "-P", str(entry)), {**injected, **QUIET})

        def identify(server: Server) -> tuple[str, int]:
            # Upstream's servers know no nonce; that our own child listens on the port has been seen already.
            httpx.get(f"{server.url}/healthz", trust_env=False, timeout=30.0).raise_for_status()
            return self.run.owner.nonce, server.pid

        return start_server(name, launch, identify, owner=self.run.owner, folder=folder / name)

    def play(self, task_id: str, script: Script) -> dict[str, Any]:
        """Let upstream's agent run one rollout of the task; return its verify response."""
        self.model.scripts[find_task(task_id).question] = script
        row = {**rows.row(task_id, self.service.identity.core), "_ng_task_index": 0, "_ng_rollout_index": 0}
        answer = httpx.post(f"{self.servers[-1].url}/run", json=row, trust_env=False, timeout=LIMIT_S)
        return answer.raise_for_status().json()

    def stop(self) -> None:
        """Stop both processes."""
        for server in self.servers:
            server.stop()


@dataclass
class GymCommand:
    """Upstream's ``gym`` command on the staged folder, with the locked stack as every server's environment."""

    run: Run
    subject: Subject
    folder: Path
    """Takes what the command leaves: environments by name, hydra's outputs, Ray's files."""

    def __post_init__(self) -> None:
        stack = Path(self.run.stack("nemo").python).parent.parent
        self.program = stack / "bin" / "gym"
        for component in COMPONENTS:
            found = self.folder / "environments" / component
            found.mkdir(parents=True)
            (found / ".venv").symlink_to(stack)
        # Else upstream would build an environment for each server, which needs the network.
        self.prepared = ("++skip_venv_if_present=true", f"++uv_venv_dir={self.folder / 'environments'}")

    def environment(self) -> dict[str, str]:
        """Return the variables of every call beside those a child always gets."""
        # Ray's socket paths must be short; its dashboard, usage report and tokens are not wanted.
        ray = {"RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        return {**QUIET, **ray, "PYTHONPATH": str(self.subject.python_path)}

    def call(self, *arguments: str, limit_s: float = 300) -> "subprocess.CompletedProcess[str]":
        """Run ``gym ARGUMENTS`` in the staged folder to its end."""
        return subprocess.run(
            [str(self.program), *arguments],
            cwd=self.subject.folder,
            env=child_environment(self.environment(), home=self.folder),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def start(self, model: ScriptedModel) -> Server:
        """Run ``gym env start``: Ray, the head server and one process per server; return once all are ready."""
        config = self.subject.nemo_entry.parent / "configs" / "german_orders.yaml"
        chosen = ("--config", str(config), "--model-type", "openai_model", "--model", "scripted")
        reached = ("--model-url", model.url, "--model-api-key", "none")

        def launch(port: int) -> Launch:
            command = (str(self.program), "env", "start", *chosen, *reached, *self.prepared)
            return Launch((*command, f"++head_server.port={port}"), self.environment())

        def identify(server: Server) -> tuple[str, int]:
            deadline = time.monotonic() + READY_LIMIT_S
            while not httpx.get(f"{server.url}/readyz", trust_env=False, timeout=30.0).is_success:
                if time.monotonic() > deadline or not server.alive:
                    raise ServerFailed(f"gym env start is not ready; its log ends:\n{server.log_tail()}")
                time.sleep(0.5)
            return self.run.owner.nonce, server.pid

        return start_server("gym-env-start", launch, identify, owner=self.run.owner, folder=self.subject.folder)
