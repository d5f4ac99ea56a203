"""Types that requests and answers of several routes share, and the table of error answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

ID_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?$"
AgentIdText = Annotated[
    str, Field(pattern=ID_PATTERN, description="An agent id; never the name of a Windows device.")
]
AgentIdInPath = Annotated[
    str, Path(pattern=ID_PATTERN, description="An agent id; never the name of a Windows device.")
]
# Both stores number messages in 64 bits.
MAX_NUMBER = 2**63 - 1


def _whole(value: object) -> object:
    """Return a number without a fraction as an integer: JSON does not distinguish 1.0 from 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Sent(BaseModel):
    """Base of request bodies: camelCase, and no unknown fields.

    An unknown field is refused, not ignored: a client that names a sender must not believe that it
    counts, since the token decides it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, allow_inf_nan=False
    )


class Problem(BaseModel):
    """The reason why a request failed."""

    detail: str


class WrongField(BaseModel):
    """An error in one part of a request."""

    model_config = ConfigDict(extra="allow")

    loc: list[str | int]
    msg: str
    type: str


class Refusal(BaseModel):
    """The reason why a request is invalid: as text, or by part."""

    detail: str | list[WrongField]


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "No valid token.",
    403: "The caller may not do this.",
    404: "No such agent, message or handoff.",
    409: "Another request was first, or the present state does not allow it.",
    413: "The body is longer than 1 MiB.",
    415: "The body is not JSON.",
    421: "The server does not answer under that host name.",
    422: "The request is invalid.",
    429: "Too many requests, or the queue is full; try again later.",
    503: "The store refused, or the server is busy; nothing was changed.",
}
_ALWAYS = (400, 403, 421, 429)
_CLOSED = (401, 503)
_WITH_BODY = (413, 415, 422)


def problems(
    *statuses: int, body: bool = False, stream: bool = False, is_open: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route, for /openapi.json.

    Args:
        statuses: Statuses that not every route has.
        body: The route takes a body.
        stream: The route answers with server-sent events.
        is_open: The route needs no token.
    """
    found: dict[int | str, dict[str, Any]] = {}
    always = _ALWAYS if is_open else (*_ALWAYS, *_CLOSED)
    for status in sorted({*always, *statuses, *(_WITH_BODY if body else ())}):
        model = Refusal if status == 422 else Problem
        found[status] = {"description": _DESCRIPTIONS[status]}
        if stream:
            # A model would be documented under the media type of the route's other answers.
            schema = {"$ref": f"#/components/schemas/{model.__name__}"}
            found[status]["content"] = {"application/json": {"schema": schema}}
        else:
            found[status]["model"] = model
    return found
