"""Upstream's base class with one trivial tool: what a tool call costs before anything of ours."""

import os
from typing import Any, ClassVar

from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from pydantic import BaseModel


class EchoRequest(BaseModel):
    """One text parameter, as our tools have."""

    expression: str


class EchoResponse(BaseModel):
    """One text."""

    text: str


class TrivialServer(SimpleResourcesServer):
    """Written the way upstream's examples are."""

    ray_enabled: ClassVar[bool | None] = False
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        """Add the tool, and the route by which the harness knows its own server."""
        app = super().setup_webserver()
        app.post("/echo")(self.echo)
        app.post("/bridge/identity")(self.process)
        return app

    async def echo(self, body: EchoRequest) -> EchoResponse:
        """Return the text."""
        return EchoResponse(text=body.expression)

    async def process(self) -> dict[str, Any]:
        """Name this process."""
        return {"process": {"nonce": os.environ["GYMQUAL_NONCE"], "pid": os.getpid()}}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Pay nothing."""
        return BaseVerifyResponse(**body.model_dump(), reward=0.0)


if __name__ == "__main__":
    TrivialServer.run_webserver()
