"""What an agent's state says about the exception that ended it."""

from __future__ import annotations

from traceback import format_exception_only
from typing import Any

MAX_MESSAGE_CHARS = 500


def stored_error(kind: type[BaseException], error: BaseException | None) -> dict[str, Any]:
    """Return the ``exit`` of an agent that an exception ended.

    Args:
        kind: The type of the exception.
        error: The exception; None = only its type is known.

    Returns:
        ``error``, the type; ``message``, type and text, at most 500 characters, where there is a
        text; ``statusCode``, where a provider has refused a request with it.
    """
    exited: dict[str, Any] = {"error": kind.__qualname__}
    if error is None:
        return exited
    text = " ".join("".join(format_exception_only(kind, error)).split())
    if ": " in text:
        exited["message"] = text[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    if (status := _status_of(error)) is not None:
        exited["statusCode"] = status
    return exited


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a refusal, by the attributes that clients of providers give it."""
    if not isinstance(error, Exception):
        return None  # the code of a SystemExit is none
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "code"), (response, "status_code")):
        status = getattr(holder, name, None)
        if type(status) is int and 400 <= status < 600:
            return status
    return None
