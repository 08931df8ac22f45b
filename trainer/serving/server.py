"""The routes of a served policy: who is let in, what is sampled for them, and how it is sent."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from trl.chat_template_utils import parse_response

from gymqual.trainer.policy.loading import Policy
from gymqual.trainer.policy.transcripts import render_ids, token_id
from gymqual.trainer.serving.answers import (
    ApiError,
    AsciiResponse,
    error_body,
    event,
    finish_reason,
    nobody,
    read_body,
    refuse,
    refuse_route,
    tool_call,
    usage,
)
from gymqual.trainer.serving.decode import Decoding, SampledToken, sample
from gymqual.trainer.serving.wire import ChatRequest, GenerateRequest, SamplingParams

DEFAULT_MAX_TOKENS = 1024
"""Sampled tokens of a request that names no limit, if the context has room for so many."""
MAX_PENDING = 256
"""Requests waiting or being answered; one more is turned away."""


class PolicyServer:
    """The routes of one served policy."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy = policy
        self._tokenizer = policy.tokenizer
        self._name = name
        self._end = token_id(policy.tokenizer.eos_token_id)
        self._vocabulary = int(policy.model.config.vocab_size)
        self._room = int(policy.model.config.max_position_embeddings)
        self._started = int(time.time())
        self._turn = asyncio.Lock()
        self._pending = 0
        self._stopping = False

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
            ],
            exception_handlers={ApiError: refuse, HTTPException: refuse_route, ClientDisconnect: nobody},
        )

    def stop(self) -> None:
        """Turn away whoever waits, and break off the reply that is being written."""
        self._stopping = True

    async def models(self, request: Request) -> Response:
        """Name the model; a starter that gave us a nonce learns that it is us."""
        model = {"id": self._name, "object": "model", "created": self._started, "owned_by": "gymqual"}
        answer = {"object": "list", "data": [{**model, "max_model_len": self._room}]}
        if nonce := os.environ.get("GYMQUAL_NONCE"):
            answer["process"] = {"nonce": nonce, "pid": os.getpid()}
        return AsciiResponse(answer)

    async def generate(self, request: Request) -> Response:
        """Continue ids by ids."""
        asked = await read_body(request, GenerateRequest)
        self._admit(asked.model)
        for field, ids in (("token_ids", asked.token_ids), ("stop_token_ids", asked.sampling_params.stop_token_ids)):
            if max(ids, default=0) >= self._vocabulary:
                raise ApiError(400, f"{field}: {max(ids)} is not an id below {self._vocabulary}", field)
        sampling = asked.sampling_params
        decoding = self._decoding(asked.token_ids, sampling, sampling.max_tokens, sampling.stop_token_ids)
        tokens = await self._reply(request, asked.token_ids, decoding)
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": [token.id for token in tokens],
            "finish_reason": finish_reason(tokens, decoding),
        }
        if sampling.logprobs is not None:
            content = [{"token": f"token_id:{token.id}", "logprob": token.logprob} for token in tokens]
            choice["logprobs"] = {"content": content}
        return AsciiResponse({"request_id": asked.request_id or secrets.token_hex(16), "choices": [choice]})

    async def chat(self, request: Request) -> Response:
        """Continue a conversation by one message."""
        asked = await read_body(request, ChatRequest)
        self._admit(asked.model)
        try:
            context = render_ids(
                self._tokenizer,
                [message.rendered() for message in asked.messages],
                tools=asked.offered or None,
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ApiError(
                400, f"messages: the policy's chat template cannot render them ({error})", "messages"
            ) from None
        decoding = self._decoding(context, asked, asked.max_completion_tokens or asked.max_tokens)
        if asked.stream:
            return StreamingResponse(self._events(asked, context, decoding), media_type="text/event-stream")
        tokens = await self._reply(request, context, decoding)
        message, reason = self._message(asked, context, tokens, decoding)
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        if asked.logprobs:
            choice["logprobs"] = {"content": self._shown_logprobs(tokens)}
        return AsciiResponse({**self._header("chat.completion"), "choices": [choice], "usage": usage(context, tokens)})

    async def _events(self, asked: ChatRequest, context: list[int], decoding: Decoding) -> AsyncGenerator[str, None]:
        """Yield a reply as server-sent events.

        Text is sent as it is sampled. With tools on offer what a reply is shows at its end, and it is sent whole.
        """
        header = self._header("chat.completion.chunk")

        def chunk(delta: dict[str, Any], new: Sequence[SampledToken] = (), reason: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            if asked.logprobs and new:
                choice["logprobs"] = {"content": self._shown_logprobs(new)}
            counted = {"usage": None} if asked.stream_options.include_usage else {}
            return event({**header, "choices": [choice], **counted})

        yield chunk({"role": "assistant", "content": ""})
        tokens: list[SampledToken] = []
        sent, shown = "", 0
        try:
            async with aclosing(self._tokens(context, decoding)) as drawn:
                async for token in drawn:
                    tokens.append(token)
                    text = "" if asked.offered else self._text(tokens, decoding)
                    # A character of several tokens is sent once it is whole.
                    if len(text) > len(sent) and not text.endswith("\ufffd"):
                        yield chunk({"content": text[len(sent) :]}, tokens[shown:])
                        sent, shown = text, len(tokens)
        except ApiError as error:
            yield event(error_body(error))
            return
        message, reason = self._message(asked, context, tokens, decoding)
        last = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
        if rest := (message["content"] or "")[len(sent) :]:
            last["content"] = rest
        if calls := message.get("tool_calls"):
            last["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        if last or (asked.logprobs and tokens[shown:]):
            yield chunk(last, tokens[shown:])
        yield chunk({}, reason=reason)
        if asked.stream_options.include_usage:
            yield event({**header, "choices": [], "usage": usage(context, tokens)})
        yield "data: [DONE]\n\n"

    async def _reply(self, request: Request, context: list[int], decoding: Decoding) -> list[SampledToken]:
        tokens = []
        async with aclosing(self._tokens(context, decoding)) as drawn:
            async for token in drawn:
                tokens.append(token)
                if await request.is_disconnected():
                    raise ClientDisconnect
        return tokens

    async def _tokens(self, context: list[int], decoding: Decoding) -> AsyncGenerator[SampledToken, None]:
        self._pending += 1
        try:
            # The model runs in a thread, a token at a time, so that other requests are heard meanwhile.
            async with self._turn:
                drawn = iterate_in_threadpool(sample(self._policy.model, context, decoding))
                while not self._stopping:
                    try:
                        yield await anext(drawn)
                    except StopAsyncIteration:
                        return
            raise ApiError(503, "the server is being stopped", code="stopping")
        finally:
            self._pending -= 1

    def _admit(self, model: str | None) -> None:
        if self._pending >= MAX_PENDING:
            raise ApiError(503, f"{MAX_PENDING} requests are waiting already; try again later", code="overloaded")
        if model not in (None, self._name):
            raise ApiError(404, f"model: {model!r} is not served here, {self._name!r} is", "model", "model_not_found")

    def _decoding(
        self,
        context: list[int],
        asked: ChatRequest | SamplingParams,
        max_tokens: int | None,
        stop_ids: Sequence[int] = (),
    ) -> Decoding:
        left = self._room - len(context)
        if left < (max_tokens or 1):
            raise ApiError(
                400,
                f"the context has {len(context)} tokens and {max_tokens or 1} more are asked for, "
                f"but this model's longest is {self._room}",
                code="context_length_exceeded",
            )
        return Decoding(
            max_tokens=max_tokens or min(left, DEFAULT_MAX_TOKENS),
            stop_ids=frozenset((self._end, *stop_ids)),
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=asked.seed,
        )

    def _message(
        self, asked: ChatRequest, context: list[int], tokens: Sequence[SampledToken], decoding: Decoding
    ) -> tuple[dict[str, Any], str]:
        """Return the assistant's message and why it ended."""
        reason = finish_reason(tokens, decoding)
        if not asked.offered:
            return {"role": "assistant", "content": self._text(tokens, decoding)}, reason
        ids = [token.id for token in tokens]
        parsed = parse_response(self._tokenizer, ids, prefix=context, tools=[*asked.offered])
        message: dict[str, Any] = {"role": "assistant", "content": parsed["content"]}
        if thinking := parsed.get("reasoning_content"):
            message["reasoning_content"] = thinking
        if calls := parsed.get("tool_calls"):
            message["content"] = message["content"] or None
            message["tool_calls"] = [tool_call(call["function"]) for call in calls]
            reason = "tool_calls" if reason == "stop" else reason
        return message, reason

    def _text(self, tokens: Sequence[SampledToken], decoding: Decoding) -> str:
        ids = [token.id for token in tokens if token.id not in decoding.stop_ids]
        return str(self._tokenizer.decode(ids))

    def _shown_logprobs(self, tokens: Sequence[SampledToken]) -> list[dict[str, Any]]:
        shown = []
        for token in tokens:
            text = str(self._tokenizer.decode([token.id]))
            # Bytes of a part of a character are not what its replacement character would give.
            raw = None if "\ufffd" in text else list(text.encode())
            shown.append({"token": text, "logprob": token.logprob, "bytes": raw, "top_logprobs": []})
        return shown

    def _header(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": self._name,
        }
