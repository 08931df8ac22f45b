"""The server's configuration and its verify bodies, in upstream's shapes."""

from typing import ClassVar

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
)
from pydantic import ConfigDict, Field, field_validator

from gymqual.gyms.launch import DEFAULT_CAPACITY
from gymqual.gyms.nemo.launch import DEFAULT_SESSION_TTL_S

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class GermanOrdersConfig(BaseResourcesServerConfig):
    """Upstream's server configuration and our two bounds."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED
    capacity: int = Field(default=DEFAULT_CAPACITY, ge=1)
    """Open sessions at most; one more is refused with 503."""
    session_ttl_s: float = Field(default=DEFAULT_SESSION_TTL_S, gt=0)
    """Seconds without a call after which a session counts as abandoned."""

    @field_validator("host")
    @classmethod
    def _loopback_only(cls, host: str) -> str:
        if host not in LOOPBACK:
            raise ValueError(f"host must be a loopback address, not {host!r}: this server has no authentication")
        return host


class GermanVerifyRequest(BaseVerifyRequest):
    """Upstream's verify body with the dataset row's fields beside it."""

    model_config = ConfigDict(extra="allow")


class GermanVerifyResponse(BaseVerifyResponse):
    """Upstream's verify response with the verdict in full.

    Upstream's wire demands a float reward: where there is none, it is 0.0 **with** ``mask_sample``, upstream's
    word for "not a measurement". The bridge route says null.
    """

    model_config = ConfigDict(extra="allow")
    strict: bool
    outcome: str
