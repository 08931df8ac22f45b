"""Serve a policy to other frameworks: OpenAI-compatible chat with tools, and token in, token out.

    python -m trainer.serve --policy mini --port 8000

Upstream's ``transformers serve`` has no token route, so the log-probabilities that trainers need would be lost.

- ``GET /v1/models`` names the model and its longest context.
- ``POST /v1/chat/completions`` renders messages by the policy's template, streams on request and parses tool calls.
- ``POST /inference/v1/generate`` takes and returns ids (vLLM's route): nothing is tokenised in between.

Requests are answered one after another: equal requests get equal ids, whoever else asks. Loopback only.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import torch
import uvicorn
from jinja2 import TemplateError
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from trl.chat_template_utils import parse_response

from harness.errors import HarnessError
from harness.process import LOOPBACK, require_free
from harness.usage import ending
from trainer.decode import Decoding, SampledToken, sample
from trainer.policy import POLICY_HELP, Policy, load_policy
from trainer.transcripts import render_ids, token_id
from trainer.wire import ChatRequest, GenerateRequest, SamplingParams

DEFAULT_MAX_TOKENS = 1024
"""Sampled tokens of a request that names no limit, if the context has room for so many."""
MAX_PENDING = 256
"""Requests waiting or being answered; one more is turned away."""
GRACE_S = 2
"""Seconds that open replies have to end when the server is stopped."""

Body = TypeVar("Body", bound=BaseModel)


class ApiError(Exception):
    """An answer that says what is wrong, in OpenAI's form."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class AsciiResponse(JSONResponse):
    """JSON in ASCII: a policy may write half a character, which UTF-8 cannot carry."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content).encode("ascii")


# ---- the server ------------------------------------------------------------------------------------


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
            exception_handlers={ApiError: _refuse, HTTPException: _refuse_route, ClientDisconnect: _nobody},
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
        asked = await _read(request, GenerateRequest)
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
            "finish_reason": _finish_reason(tokens, decoding),
        }
        if sampling.logprobs is not None:
            content = [{"token": f"token_id:{token.id}", "logprob": token.logprob} for token in tokens]
            choice["logprobs"] = {"content": content}
        return AsciiResponse({"request_id": asked.request_id or secrets.token_hex(16), "choices": [choice]})

    async def chat(self, request: Request) -> Response:
        """Continue a conversation by one message."""
        asked = await _read(request, ChatRequest)
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
        return AsciiResponse({**self._header("chat.completion"), "choices": [choice], "usage": _usage(context, tokens)})

    async def _events(self, asked: ChatRequest, context: list[int], decoding: Decoding) -> AsyncGenerator[str, None]:
        """Yield a reply as server-sent events.

        Text is sent as it is sampled. With tools on offer what a reply is shows at its end, and it is sent whole.
        """
        header = self._header("chat.completion.chunk")

        def event(delta: dict[str, Any], new: Sequence[SampledToken] = (), reason: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            if asked.logprobs and new:
                choice["logprobs"] = {"content": self._shown_logprobs(new)}
            usage = {"usage": None} if asked.stream_options.include_usage else {}
            return _event({**header, "choices": [choice], **usage})

        yield event({"role": "assistant", "content": ""})
        tokens: list[SampledToken] = []
        sent, shown = "", 0
        try:
            async with aclosing(self._tokens(context, decoding)) as drawn:
                async for token in drawn:
                    tokens.append(token)
                    text = "" if asked.offered else self._text(tokens, decoding)
                    # A character of several tokens is sent once it is whole.
                    if len(text) > len(sent) and not text.endswith("\ufffd"):
                        yield event({"content": text[len(sent) :]}, tokens[shown:])
                        sent, shown = text, len(tokens)
        except ApiError as error:
            yield _event(_error(error))
            return
        message, reason = self._message(asked, context, tokens, decoding)
        last = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
        if rest := (message["content"] or "")[len(sent) :]:
            last["content"] = rest
        if calls := message.get("tool_calls"):
            last["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        if last or (asked.logprobs and tokens[shown:]):
            yield event(last, tokens[shown:])
        yield event({}, reason=reason)
        if asked.stream_options.include_usage:
            yield _event({**header, "choices": [], "usage": _usage(context, tokens)})
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
        reason = _finish_reason(tokens, decoding)
        if not asked.offered:
            return {"role": "assistant", "content": self._text(tokens, decoding)}, reason
        ids = [token.id for token in tokens]
        parsed = parse_response(self._tokenizer, ids, prefix=context, tools=[*asked.offered])
        message: dict[str, Any] = {"role": "assistant", "content": parsed["content"]}
        if thinking := parsed.get("reasoning_content"):
            message["reasoning_content"] = thinking
        if calls := parsed.get("tool_calls"):
            message["content"] = message["content"] or None
            message["tool_calls"] = [_call(call["function"]) for call in calls]
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


# ---- pieces of answers -----------------------------------------------------------------------------


def _finish_reason(tokens: Sequence[SampledToken], decoding: Decoding) -> str:
    return "stop" if tokens[-1].id in decoding.stop_ids else "length"


def _call(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }


def _usage(context: Sequence[int], tokens: Sequence[SampledToken]) -> dict[str, int]:
    return {
        "prompt_tokens": len(context),
        "completion_tokens": len(tokens),
        "total_tokens": len(context) + len(tokens),
    }


def _error(error: ApiError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def _read(request: Request, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        wrong = "not honoured here; leave it out" if first["type"] == "extra_forbidden" else first["msg"]
        raise ApiError(400, f"{field or 'the body'}: {wrong}", field or None) from None


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return AsciiResponse(_error(error), error.status)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    named = f"{request.method} {request.url.path}: {error.detail}"
    return await _refuse(request, ApiError(error.status_code, named))


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


# ---- the command -----------------------------------------------------------------------------------


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
    # As Ctrl-C does; uvicorn raises the signal that ended it once more.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.threads < 1:
            raise HarnessError(f"--threads {options.threads} must be at least 1")
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
    except (HarnessError, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("serve: stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.serve",
        description=__doc__,
        epilog=ending("trainer.serve --policy mini --port 8000", {0: "ended by Ctrl-C or SIGTERM"}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", default="mini", help=POLICY_HELP)
    parser.add_argument("--adapter", type=Path, metavar="DIR", help="LoRA adapter on top of the policy (default: none)")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1 to listen on (required)")
    parser.add_argument("--name", metavar="MODEL", help="name the model is asked for by (default: the policy's)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
