"""The policy server over its real socket: what it samples, what it says of it, and how it ends."""

import json
import socket
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from gymqual.__main__ import main
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.stacks.policy_server import start_policy
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.policy.transcripts import render_ids, tool_schemas

pytestmark = pytest.mark.cpu_qualification

TASKS = GermanOrders()
TASK = "v1/dev/0/0"
TOOLS = tool_schemas(TASKS)
UNSURE = "\n"
"""A context after which mini is unsure, so that temperature shows."""


def _chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": "mini", "messages": TASKS.prompt(TASK), "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json=body).raise_for_status().json()


def _generate(client: httpx.Client, ids: list[int], **sampling: Any) -> dict[str, Any]:
    body = {"model": "mini", "token_ids": ids, "sampling_params": {"logprobs": 1, **sampling}}
    return client.post("/inference/v1/generate", json=body).raise_for_status().json()["choices"][0]


def _context(policy: Policy, task: str = TASK) -> list[int]:
    return render_ids(policy.tokenizer, TASKS.prompt(task), tools=TOOLS, add_generation_prompt=True)


def _logprobs(policy: Policy, ids: list[int], temperature: float) -> torch.Tensor:
    """Return the log-probabilities after every id, (tokens, vocabulary), of one forward pass without a cache."""
    with torch.inference_mode():
        return (policy.model(input_ids=torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)


def test_a_chat_plays_an_episode_to_its_reward(client: httpx.Client) -> None:
    """A conversation that sends back the assistant's calls and the tools' answers MUST lead mini to its reward."""
    session, messages, reasons = LocalGym(TASKS).open(TASK), list(TASKS.prompt(TASK)), []
    for _ in range(3):
        choice = _chat(client, messages=messages, tools=TOOLS)["choices"][0]
        reasons.append(choice["finish_reason"])
        messages.append(choice["message"])
        for call in choice["message"].get("tool_calls", ()):
            shown = session.call(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown.text})
    verdict = session.verify(messages[-1]["content"])
    assert (reasons, verdict.strict) == (["tool_calls", "tool_calls", "stop"], True), explain(
        subject="finish reasons and verdict of a greedy episode over the chat route",
        expected=(["tool_calls", "tool_calls", "stop"], True),
        got=(reasons, verdict, messages),
        cause="calls are parsed or rendered otherwise than in training",
    )


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_a_stream_says_what_one_answer_says(client: httpx.Client, tools: list[dict[str, Any]]) -> None:
    """The deltas of a streamed greedy reply MUST add up to the reply that comes whole, usage and reason included."""
    whole = _chat(client, tools=tools, logprobs=True)
    streamed = {"model": "mini", "messages": TASKS.prompt(TASK), "temperature": 0, "tools": tools, "logprobs": True}
    body = {**streamed, "stream": True, "stream_options": {"include_usage": True}}
    lines = client.post("/v1/chat/completions", json=body).raise_for_status().text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    said, expected = _added_up(events), _plain(whole)
    assert (said, lines[-2:]) == (expected, ["data: [DONE]", ""]), explain(
        subject="message, finish reason, log-probabilities and usage of a stream, and its end",
        expected=expected,
        got=(said, lines[-2:]),
        cause="a delta is lost or doubled, or a reply is sampled by another path",
    )


def _added_up(events: list[dict[str, Any]]) -> tuple[Any, ...]:
    choices = [event["choices"][0] for event in events if event["choices"]]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    logprobs = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    return content, calls, choices[-1]["finish_reason"], logprobs, events[-1]["usage"]


def _plain(answer: dict[str, Any]) -> tuple[Any, ...]:
    choice, message = answer["choices"][0], answer["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["content"] or "", calls, choice["finish_reason"], choice["logprobs"]["content"], answer["usage"]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 2.0}], ids=str)
def test_logprobs_are_of_the_distribution_drawn_from(client: httpx.Client, mini: Policy, sampling: Any) -> None:
    """The log-probability of every id, the end included, MUST be that of an independent pass at its temperature."""
    context = _context(mini)
    choice = _generate(client, context, seed=7, **sampling)
    ids, shown = choice["token_ids"], choice["logprobs"]["content"]
    passed = _logprobs(mini, context + ids, sampling.get("temperature", 1.0))
    expected = [passed[len(context) - 1 + index, token].item() for index, token in enumerate(ids)]
    worst = max(abs(entry["logprob"] - own) for entry, own in zip(shown, expected, strict=True))
    seen = ([entry["token"] for entry in shown], worst <= 1e-4)
    assert seen == ([f"token_id:{token}" for token in ids], True), explain(
        subject=f"log-probabilities of a reply sampled with {sampling or 'the defaults'}",
        expected=expected,
        got=shown,
        cause="they are of another temperature, of a cut-off distribution, or of the ids' neighbours",
    )


def test_tokens_come_as_often_as_their_probability(client: httpx.Client, mini: Policy) -> None:
    """At temperature 2 the likeliest id MUST come as often as it should, within four standard errors, of 200."""
    context = mini.tokenizer.encode(UNSURE, add_special_tokens=False)
    share, token = _logprobs(mini, context, 2.0)[-1].exp().max(-1)
    drawn = [
        _generate(client, context, temperature=2.0, max_tokens=1, seed=seed)["token_ids"][0] for seed in range(200)
    ]
    error = (share * (1 - share) / 200) ** 0.5
    frequency = drawn.count(token.item()) / 200
    assert abs(frequency - share.item()) <= 4 * error, explain(
        subject="frequency of the likeliest id at temperature 2",
        expected=f"{share.item():.3f} within {4 * error.item():.3f}",
        got=frequency,
        cause="temperature or seed is not used, or unlikely ids are cut off",
    )


def test_greedy_ids_are_those_of_generate(client: httpx.Client, mini: Policy) -> None:
    """The token route at temperature 0 MUST return the very ids that ``model.generate`` finds."""
    contexts = [_context(mini, f"v1/dev/0/{index}") for index in range(4)]
    served = [_generate(client, context, temperature=0, max_tokens=64)["token_ids"] for context in contexts]
    own = []
    for context in contexts:
        ids = torch.tensor([context])
        generate: Any = mini.model.generate
        made = generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        own.append(made[0, len(context) :].tolist())
    assert served == own, explain(
        subject="greedy ids of four contexts",
        expected=own,
        got=served,
        cause="ids are decoded and encoded again, or the cache is fed wrongly",
    )


def test_requests_at_once_are_answered_as_alone(client: httpx.Client) -> None:
    """Eight concurrent greedy requests MUST each get what the same request gets alone."""
    prompts = [TASKS.prompt(f"v1/dev/0/{index}") for index in range(8)]

    def reply(messages: list[dict[str, str]]) -> tuple[Any, ...]:
        return _plain(_chat(client, messages=messages, tools=TOOLS, logprobs=True))

    alone = [reply(prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(reply, prompts))
    assert together == alone, explain(
        subject="eight replies at once and one by one",
        expected=alone,
        got=together,
        cause="requests share a cache, a batch or a random state",
    )


def test_a_server_that_is_stopped_ends_cleanly(run: Run, tmp_path: Path) -> None:
    """SIGTERM with replies under way MUST end the server with 0, each reply whole or refused, without a traceback."""
    server = start_policy("mini4", run.owner, tmp_path, name="small")
    body = {"model": "small", "token_ids": [5], "sampling_params": {"temperature": 5.0, "max_tokens": 500, "seed": 1}}

    with ThreadPoolExecutor(24) as pool, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        answers = [pool.submit(client.post, "/inference/v1/generate", json=body) for _ in range(24)]
        # The rest is under way or waits by then.
        wait(answers, return_when=FIRST_COMPLETED)
        server.stop()
        codes = {answer.result().status_code for answer in answers}
    seen = (server.exit_code, codes, "Traceback" in server.log.read_text())
    assert seen == (0, {200, 503}, False), explain(
        subject="exit code, answers and log of a server stopped at work",
        expected=(0, {200, 503}, False),
        got=(seen, server.log_tail()),
        cause="replies under way hold up the end, or are cut off in mid-flight",
    )


def test_a_taken_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that somebody holds MUST be refused in one sentence with exit code 2, before a policy is loaded."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        code = main(["serve-policy", "--policy", "mini", "--port", str(port)])
    said = capsys.readouterr().err
    assert (code, f"port {port} is taken" in said, said.count("\n")) == (2, True, 1), explain(
        subject="serving on a taken port",
        expected=(2, f"port {port} is taken"),
        got=(code, said),
        cause="the port is looked at after the policy was loaded",
    )
