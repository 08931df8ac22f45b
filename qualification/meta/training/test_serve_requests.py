"""What the policy server refuses: requests that cannot be honoured, that nobody reads, or that find no room."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.serving import server as policy_server

pytestmark = pytest.mark.cpu_qualification

CHAT = {"model": "mini", "messages": [{"role": "user", "content": "Hallo"}]}
IDS = {"token_ids": [5, 6]}
IDS_OF_ONE = {**IDS, "sampling_params": {"max_tokens": 1}}
REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "no JSON": ("chat", "{", 400, "Invalid JSON"),
    "a list": ("chat", [], 400, "the body"),
    "no model": ("chat", {"messages": CHAT["messages"]}, 400, "model"),
    "another model": ("chat", {**CHAT, "model": "maxi"}, 404, "model"),
    "no messages": ("chat", {**CHAT, "messages": []}, 400, "messages"),
    "an unknown role": ("chat", {**CHAT, "messages": [{"role": "judge"}]}, 400, "messages.0.role"),
    "an image": ("chat", {**CHAT, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "messages.0"),
    "an unknown field": ("chat", {**CHAT, "best_of": 2}, 400, "best_of"),
    "two choices": ("chat", {**CHAT, "n": 2}, 400, "n"),
    "a penalty": ("chat", {**CHAT, "presence_penalty": 0.5}, 400, "presence_penalty"),
    "a forced call": ("chat", {**CHAT, "tool_choice": "required"}, 400, "tool_choice"),
    "a tool without name": ("chat", {**CHAT, "tools": [{"type": "function", "function": {}}]}, 400, "tools.0.function"),
    "a negative temperature": ("chat", {**CHAT, "temperature": -1}, 400, "temperature"),
    "a temperature in words": ("chat", {**CHAT, "temperature": "warm"}, 400, "temperature"),
    "no probability": ("chat", {**CHAT, "top_p": 0}, 400, "top_p"),
    "no tokens": ("chat", {**CHAT, "max_tokens": 0}, 400, "max_tokens"),
    "too many tokens": ("chat", {**CHAT, "max_tokens": 512}, 400, "context"),
    "too long a context": ("generate", {"token_ids": [5] * 512}, 400, "context"),
    "no ids": ("generate", {"token_ids": []}, 400, "token_ids"),
    "ids that are words": ("generate", {"token_ids": ["a"]}, 400, "token_ids.0"),
    "an id beyond the vocabulary": ("generate", {"token_ids": [512]}, 400, "token_ids"),
    "an unknown parameter": ("generate", {**IDS, "sampling_params": {"beam": 4}}, 400, "sampling_params.beam"),
    "a huge seed": ("generate", {**IDS, "sampling_params": {"seed": 2**80}}, 400, "sampling_params.seed"),
    "a cut-off": ("generate", {**IDS, "sampling_params": {"top_k": 50}}, 400, "sampling_params.top_k"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused_by_field(client: httpx.Client, name: str) -> None:
    """A request that cannot be honoured MUST be refused in OpenAI's form, naming the field, and nothing sampled."""
    route, body, status, named = REFUSED[name]
    path = {"chat": "/v1/chat/completions", "generate": "/inference/v1/generate"}[route]
    answer = client.post(path, content=body if isinstance(body, str) else json.dumps(body))
    error = answer.json().get("error", {})
    overlong = error.get("code") == "context_length_exceeded"
    seen = (answer.status_code, named in error.get("message", ""), error.get("type"), overlong)
    assert seen == (status, True, "invalid_request_error", named == "context"), explain(
        subject=f"{name} on the {route} route",
        expected=(status, named),
        got=(answer.status_code, answer.text),
        cause="the field is ignored in silence, or the failure is met while sampling",
    )


def test_a_client_that_hangs_up_is_not_waited_for(client: httpx.Client) -> None:
    """Replies that nobody reads any more MUST stop: twenty of them, minutes in all, delay the next by seconds."""
    unread = {"model": "mini", "token_ids": [5], "sampling_params": {"temperature": 5.0, "max_tokens": 500}}

    def hang_up(number: int) -> None:
        # One may draw its end at once.
        with suppress(httpx.ReadTimeout):
            client.post("/inference/v1/generate", json=unread, timeout=0.5)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(hang_up, range(20)))
    try:
        answered = client.post("/inference/v1/generate", json=IDS_OF_ONE, timeout=15).status_code
    except httpx.ReadTimeout:
        answered = None
    assert answered == 200, explain(
        subject="a short request after twenty long ones whose clients hung up",
        expected=200,
        got=answered or "nothing within 15 s",
        cause="a reply is written to its end for nobody",
    )


def test_more_requests_than_can_wait_are_turned_away(mini: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request beyond the bound of those waiting MUST be refused at once with 503, on every route that samples."""
    monkeypatch.setattr(policy_server, "MAX_PENDING", 0)
    app = policy_server.PolicyServer(mini, "mini").app()

    async def both() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://policy") as inside:
            answers = [await inside.post("/v1/chat/completions", json={**CHAT, "stream": True})]
            answers.append(await inside.post("/inference/v1/generate", json=IDS_OF_ONE))
        return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]

    seen = asyncio.run(both())
    assert seen == [(503, "overloaded")] * 2, explain(
        subject="status and code of a request that finds no room",
        expected=[(503, "overloaded")] * 2,
        got=seen,
        cause="the queue has no bound, or a stream begins before it is looked at",
    )
