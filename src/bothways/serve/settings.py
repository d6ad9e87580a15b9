"""The limits of the service, and what stands around it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bothways.errors import BothwaysError, require_range

API_KEY = "BOTHWAYS_API_KEY"
"""The environment variable that holds the key."""


@dataclass(frozen=True)
class ServeSettings:
    """What one request may ask for, and how many may be in the service at once."""

    max_requests: int = 256
    """Requests in the service at once, those that wait included. More are refused with 429."""
    max_body: int = 4 * 2**20
    """Bytes of a request."""
    max_texts: int = 2_048
    """Texts of a request; of a reranking its documents."""
    max_tokens: int = 131_072
    """Tokens that a request may have the model read, its windows included."""
    batch_tokens: int | None = None
    """Token budget of a batch. None: 2,048 on a CPU, 32,768 on a GPU."""
    timeout: float = 60.0
    """Seconds until a request is given up with 504."""
    read_timeout: float = 10.0
    """Seconds that a client may be silent in the middle of a request, or not read its answer."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may read answers in a browser; * is all."""
    api_key: str = ""
    """Requests must carry it as `Authorization: Bearer KEY`. Empty: no key is asked for."""

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_body", "max_texts", "max_tokens", "timeout", "read_timeout"):
            require_range(f"`{name}`", getattr(self, name), getattr(self, name) > 0, "above 0")
        if self.batch_tokens is not None:
            require_range("`batch_tokens`", self.batch_tokens, self.batch_tokens > 0, "above 0")


def key_from(environment: Mapping[str, str] = os.environ) -> str:
    """The API key of the environment; "" if there is none. An empty one is refused: it would protect nothing."""
    if API_KEY not in environment:
        return ""
    key = environment[API_KEY].strip()
    if not key or not key.isascii():
        raise BothwaysError(
            f"the environment variable {API_KEY} is {'empty' if not key else 'not ASCII'}: set it to a key, or unset "
            "it to ask for none",
            "bad-key",
        )
    return key
