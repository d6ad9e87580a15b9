"""Refusals: what is wrong with a request, in the shape of the API that it speaks."""

from collections.abc import Callable, Mapping
from typing import Any

from bothways.errors import BothwaysError

Shape = Callable[["RefusedError"], dict[str, Any]]


class RefusedError(Exception):
    """A request that is not answered, with its status of HTTP."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"retry-after": "1"}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


_STATUS = {"too-long": 413, "not-finite": 500}
"""The status of an error of the library, by its code; 422 if it is not here."""


def refusal_of(error: Exception) -> RefusedError:
    """What an error in the work on a request means for the client. An unknown one says nothing of its cause."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, BothwaysError):
        return RefusedError(_STATUS.get(error.code, 422), str(error), error.code or "bad-input")
    return RefusedError(500, "the service failed at this request; its log names the place", "internal-error")


def openai_shape(refusal: RefusedError) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}"""
    kind = "server_error" if refusal.status >= 500 else _OPENAI_TYPES.get(refusal.status, "invalid_request_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def tei_shape(refusal: RefusedError) -> dict[str, Any]:
    """{"error", "error_type"}"""
    kind = "Backend" if refusal.status >= 500 else _TEI_TYPES.get(refusal.status, "Validation")
    return {"error": refusal.message, "error_type": kind}


def cohere_shape(refusal: RefusedError) -> dict[str, Any]:
    """{"message"}"""
    return {"message": refusal.message}


_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_TEI_TYPES = {429: "Overloaded"}
SHAPES: Mapping[str, Shape] = {"openai": openai_shape, "tei": tei_shape, "cohere": cohere_shape}
