"""The runs that the Verifiers checks look at, each played once per session and once per planted defect."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from shutil import copy2
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from gymqual.gyms.base import Script
from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.verifiers.launch import ENVIRONMENT
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import Finished, Server
from gymqual.harness.records.files import ROOT
from gymqual.harness.stacks.policy_server import start_policy
from gymqual.harness.stacks.verifiers_rollouts import Run as Rollouts
from gymqual.harness.stacks.verifiers_rollouts import Verifiers
from gymqual.qualification.support.commands import run_module
from gymqual.qualification.support.verifiers.fault_matrix import cases
from gymqual.qualification.support.verifiers.model_server import Break, ModelServer, Reply, Says, says
from gymqual.qualification.support.verifiers.plans import DOCUMENTED, FIXTURE, Played, plan, token_plan
from gymqual.qualification.support.verifiers.token_tap import SPOILS, Exchange, TokenTap

MANY = tuple(f"v1/dev/7/{index}" for index in range(16))
ONE = "v1/dev/0/0"


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def once(method: "Callable[Concatenate[Lab, Arguments], Result]") -> "Callable[Concatenate[Lab, Arguments], Result]":
    """Remember a method's result by name, arguments and planted defect."""

    @wraps(method)
    def remembering(lab: "Lab", *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        key = (method.__name__, lab.defect, arguments)
        if key not in lab.remembered:
            lab.remembered[key] = method(lab, *arguments, **named)
        return lab.remembered[key]

    return remembering


class Lab:
    """Plays rollouts through upstream's commands, healthy or under ``defect``."""

    def __init__(self, run: Run, inference_url: str | None = None) -> None:
        self.defect = ""
        """Name of the planted defect; see ``qualification/broken/verifiers_environment.py``."""
        self.orders = GermanOrders()
        self.remembered: dict[Any, Any] = {}
        self.stack = run.stack("verifiers")
        self.subject = run.subject
        self._run = run
        self._inference_url = inference_url

    @property
    def verifiers(self) -> Verifiers:
        """Upstream's commands on the staged copy, or on one with the defect before it on the path."""
        folder = self._run.folder / self._run.mine("rollouts") / (self.defect or "healthy")
        if not self.defect:
            return Verifiers(self.stack, self.subject, self._run.owner, folder)
        broken = folder / "broken"
        broken.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / "qualification" / "broken" / "verifiers_environment.py", broken / f"{ENVIRONMENT}.py")
        return Verifiers(
            self.stack, self.subject, self._run.owner, folder, str(broken), {"GYMQUAL_DEFECT": self.defect}
        )

    # ---- scripted, direct --------------------------------------------------------------------------

    @once
    def fixture(self) -> Rollouts:
        """Four tasks, twice each, played by the fixture's oracle: the README's command."""
        return self.verifiers.evaluate("fixture", *FIXTURE, "-n", "4", "-r", "2")

    @once
    def validation(self) -> list[dict[str, Any]]:
        """Upstream's own validation of four canary tasks: the rows of its results."""
        run = ("--runtime.type", "subprocess", "--no-rich", "-o", str(self.verifiers.folder), "--run.name", "validate")
        self.verifiers.command("vf-validate", ENVIRONMENT, "--taskset.pool", "canary", "-n", "4", *run)
        lines = (self.verifiers.folder / "validate" / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @once
    def interleaved(self) -> tuple[Rollouts, dict[str, Played]]:
        """Sixteen tasks at once, solved and failed in turn; by task key what was played."""
        scripts = [self.orders.scripts(task)["oracle" if index % 2 else "wrong"] for index, task in enumerate(MANY)]
        played = {task: Played(script) for task, script in zip(MANY, scripts, strict=True)}
        return self._scripted("interleaved", played), played

    @once
    def near_misses(self) -> tuple[Rollouts, dict[str, Played]]:
        """Every scripted episode of one task, and some by budget, format and order; by task key what was played."""
        named = self.orders.scripts(ONE)
        calls, answer = named["oracle"].calls, named["oracle"].answer
        episodes = [
            *(Played(script) for script in named.values()),
            Played(Script("extra text", calls, f"Es sind {answer}.")),
            Played(Script("cut off", calls, answer), truncated=True),
            Played(Script("a turn of several calls", (*calls, *calls[::-1]), answer), at_once=True),
            Played(Script("calculated before looked up", calls[::-1], answer)),
        ]
        played = {ONE if number == 1 else f"{ONE}#{number}": each for number, each in enumerate(episodes, 1)}
        return self._scripted("near-misses", played), played

    def _scripted(self, run: str, played: Mapping[str, Played]) -> Rollouts:
        file = self.verifiers.folder / f"{run}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"task_id": key.partition("#")[0], "script": each.as_data()} for key, each in played.items()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.verifiers.evaluate(run, *FIXTURE, "--env.taskset.rollouts", str(file))

    # ---- against the scripted model server ---------------------------------------------------------

    @once
    def canaries(self) -> tuple[Rollouts, list[dict[str, Any]]]:
        """Canary tasks, one that looks its record up and one that never does; with every request the model got."""
        tasks = ("canary/dev/0/0", "canary/dev/0/1")
        scripts = [self.orders.scripts(task) for task in tasks]
        replies = self._replies(tasks, [says(scripts[0]["oracle"]), says(scripts[1]["guess"])])
        with ModelServer(replies) as server:
            run = self.verifiers.play("canaries", plan([[{"task_id": task} for task in tasks]], server.url))
        return run, server.requests

    @once
    def documented(self) -> tuple[Rollouts, list[dict[str, Any]]]:
        """The README's command for a real model: solved, wrong, over its turns, over its tokens; with every request."""
        tasks = [f"v1/dev/0/{index}" for index in range(4)]
        scripts = [self.orders.scripts(task) for task in tasks]
        look = scripts[2]["oracle"].calls[0]
        long = [Says(calls=(scripts[3]["oracle"].calls[0],), tokens=400)]
        replies = self._replies(
            tasks, [says(scripts[0]["oracle"]), says(scripts[1]["wrong"]), [Says(calls=(look,))], long]
        )
        with ModelServer(replies) as server:
            run = self.verifiers.evaluate("documented", *DOCUMENTED.format(url=server.url).split(), "-c", "2")
        return run, server.requests

    @once
    def short_of_time(self) -> Rollouts:
        """The same command with sixteen seconds a rollout: a model that never stops and one that never answers."""
        tasks = [f"v1/dev/0/{index}" for index in range(2)]
        with ModelServer(self._replies(tasks, [[Break.ENDLESS], [Break.HANG]])) as server:
            command = DOCUMENTED.replace("120", "16").replace("-n 4", "-n 2").format(url=server.url)
            return self.verifiers.evaluate("short-of-time", *command.split())

    @once
    def faults(self) -> tuple[Rollouts, dict[str, str]]:
        """The fault matrix and its twins in one process; by name the task's key."""
        rows: dict[str, dict[str, Any]] = {}
        replies: dict[str, Sequence[Reply]] = {}
        for number, (name, make) in enumerate(cases().items()):
            task = f"v1/dev/6/{number}"
            case_replies, row = make(self.orders.scripts(task))
            replies |= self._replies([task], [case_replies])
            rows[name] = {"task_id": task, **row}
        last = [rows[name] for name in rows if rows[name].get("fault") == "tool_server_exits"]
        first = [row for row in rows.values() if row not in last]
        with ModelServer(replies) as server:
            run = self.verifiers.play("faults", plan([first, last], server.url))
        return run, {name: row["task_id"] for name, row in rows.items()}

    @staticmethod
    def _replies(tasks: Sequence[str], replies: Sequence[Sequence[Reply]]) -> dict[str, Sequence[Reply]]:
        return {find_task(task).record_id: each for task, each in zip(tasks, replies, strict=True)}

    # ---- against a real model ----------------------------------------------------------------------

    @cached_property
    def policy(self) -> Server:
        """The embedded policy behind its own server."""
        return start_policy("mini", self._run.owner, self._run.folder / self._run.mine("policy"))

    @once
    def tokens(self) -> tuple[Rollouts, list[Exchange]]:
        """Eight sampled rollouts, token in, token out; with every exchange on the wire."""
        rows = [{"task_id": f"v1/dev/0/{index}"} for index in range(8)]
        with TokenTap(self.policy.url) as tap:
            return self.verifiers.play("tokens", token_plan([rows], tap.url)), tap.exchanges

    @once
    def spoilt(self) -> dict[str, dict[str, Any]]:
        """One rollout for each way log-probabilities can be wrong, a healthy one, and renderers that do not fit."""
        renderers = {"no renderer": None, "a model's own": {"name": "gpt-oss"}}
        spoilt = [{"task_id": f"v1/dev/1/{index}"} for index, _ in enumerate(SPOILS)]
        others = [
            {"task_id": f"v1/dev/2/{index}", "client": {"renderer": each}}
            for index, each in enumerate(renderers.values())
        ]
        with TokenTap(self.policy.url, tuple(SPOILS.values())) as tap:
            run = self.verifiers.play("spoilt", token_plan([spoilt, others], tap.url))
        names = dict(zip(tap.sessions, SPOILS, strict=False))
        keys = {row["task_id"]: name for row, name in zip(others, renderers, strict=True)}
        return {names.get(trace["id"]) or keys[key]: trace for key, trace in run.traces.items()}

    @once
    def real(self) -> Rollouts:
        """The README's command for a real model, against the one that was named, or the embedded policy."""
        url = self._inference_url or f"{self.policy.url}/v1"
        model = httpx.get(f"{url}/models", trust_env=False, timeout=30).raise_for_status().json()["data"][0]["id"]
        command = DOCUMENTED.replace("--model scripted", f"--model {model}").format(url=url)
        return self.verifiers.evaluate("real", *command.split(), "-c", "2", limit_s=600)

    # ---- afterwards --------------------------------------------------------------------------------

    @once
    def dry_run(self) -> dict[str, Any]:
        """What a bare ``vf-eval verifiers_environment`` would do: its resolved configuration."""
        local = ("--dry-run", "--no-push", "--no-rich", "-o", str(self.verifiers.folder), "--run.name", "bare")
        return Rollouts(self.verifiers.folder / "bare", self.verifiers.command("vf-eval", ENVIRONMENT, *local)).resolved

    @once
    def branches(self, run: Rollouts) -> dict[str, list[dict[str, Any]]]:
        """What a trainer reads of every rollout by upstream's own model: ids, mask and log-probabilities by branch."""
        printed = self.verifiers.command("-c", _BRANCHES, str(run.folder / "traces.jsonl")).output
        return {each["trace"]: each["branches"] for each in map(json.loads, printed.splitlines())}

    @once
    def replayed(self, run: Rollouts) -> Rollouts:
        """A run scored again by ``vf-replay``."""
        folder = run.folder.with_name(f"{run.folder.name}-replayed")
        return Rollouts(folder, self.verifiers.command("vf-replay", str(run.folder), "--no-rich", "-o", str(folder)))

    @once
    def resumed(self) -> tuple[list[str], list[str]]:
        """A run of three rollouts, one of them without a reward, and what ``--resume`` makes of it: the saved lines."""
        rows = [
            {"task_id": "v1/dev/3/0"},
            {"task_id": "v1/dev/3/1", "script": Played(self.orders.scripts("v1/dev/3/1")["wrong"]).as_data()},
            {"task_id": "v1/dev/3/2", "fault": "scoring_hangs"},
        ]
        file = self.verifiers.folder / "resumed.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        short = ("--env.agent.timeout.scoring", "1")
        run = self.verifiers.evaluate("resumed", *FIXTURE, *short, "--env.taskset.rollouts", str(file))
        first = run.lines
        self.verifiers.command("vf-eval", "@", str(run.folder / "configs/resolved/eval.json"), "--resume")
        return first, run.lines

    @once
    def served(self) -> tuple[Rollouts, Rollouts]:
        """Four scripted rollouts in process, and the same through upstream's environment server and its client."""
        tasks = ("v1/dev/4/0", "v1/dev/4/1", "v1/dev/4/2", "v1/dev/4/3")
        names = ("oracle", "wrong", "guess", "malformed")
        scripts = [Played(self.orders.scripts(task)[name]).as_data() for task, name in zip(tasks, names, strict=True)]
        rows = [{"task_id": task, "script": script} for task, script in zip(tasks, scripts, strict=True)]
        agent = {"harness": {"id": "fixture_harness"}, "runtime": {"type": "subprocess"}}
        stages = {"env": {"agent": agent}, "stages": [rows]}
        return self.verifiers.play("in-process", stages), self.verifiers.play("served", stages, "--served")

    @once
    def reread(self, run: Rollouts) -> Finished:
        """Read a run by upstream's own models: ends with 0 if nothing of it is lost."""
        return self.verifiers.command("-c", _REREAD, str(run.folder / "traces.jsonl"))


def classified(folder: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the classifier as a command, by this interpreter; return its exit code and its rows by task key."""
    ended = run_module("gymqual.gyms.verifiers.classify", folder, "--json")
    rows = json.loads(ended.stdout)["rollouts"] if ended.stdout else []
    return ended.returncode, {row["task"]: row for row in rows}


_BRANCHES = """
import json, sys
import verifiers.v1 as vf
for line in open(sys.argv[1], encoding="utf-8"):
    for trace in vf.WireEpisode.model_validate_json(line).traces:
        branches = [{"ids": b.token_ids, "mask": b.sampled_mask, "logprobs": b.logprobs} for b in trace.branches]
        print(json.dumps({"trace": trace.id, "branches": branches}))
"""
_REREAD = """
import json, sys
import verifiers.v1 as vf
for line in open(sys.argv[1], encoding="utf-8"):
    episode = vf.WireEpisode.model_validate_json(line)
    if json.loads(episode.model_dump_json(exclude_none=True)) != json.loads(line):
        sys.exit("upstream's own schema does not hold this line: " + line[:200])
"""
