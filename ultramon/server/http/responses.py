"""What the routes take and answer, as far as they have it in common: the table of problems."""

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
MAX_NUMBER = 2**63 - 1


def _whole(value: object) -> object:
    """Return a number without a fraction as the integer that it is in JSON, however written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Sent(BaseModel):
    """Base of the bodies of our own routes: camelCase, and nothing that is not asked for.

    An unknown field is refused rather than ignored: whoever names a sender must learn that it is
    taken from the token.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, allow_inf_nan=False
    )


class Problem(BaseModel):
    """Why a request was not done."""

    detail: str


class WrongField(BaseModel):
    """What is wrong with one part of a request."""

    model_config = ConfigDict(extra="allow")

    loc: list[str | int]
    msg: str
    type: str


class Refusal(BaseModel):
    """Why a request makes no sense: in words, or part by part."""

    detail: str | list[WrongField]


_WORDS = {
    400: "The request cannot be read.",
    401: "The request proves nothing: a valid token is missing.",
    403: "Whoever calls may not do this.",
    404: "There is none of that name or number.",
    409: "Something else was first, or the present state does not allow it.",
    413: "The body is longer than 1 MiB.",
    415: "The body is not JSON.",
    421: "The server does not answer under that host name.",
    422: "What is asked makes no sense.",
    429: "Too often, too many at once, or too much waits already; try again later.",
    503: "The store refused, or the server is busy; nothing was changed.",
}
_ALWAYS = (400, 403, 421, 429)
_CLOSED = (401, 503)
_WITH_BODY = (413, 415, 422)


def problems(
    *statuses: int, body: bool = False, stream: bool = False, is_open: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route that tell of a problem, for its entry in the document.

    Args:
        statuses: Those that not every route has.
        body: The route takes a body.
        stream: The route answers with server-sent events when there is no problem.
        is_open: The route asks for no token.
    """
    found: dict[int | str, dict[str, Any]] = {}
    always = _ALWAYS if is_open else (*_ALWAYS, *_CLOSED)
    for status in sorted({*always, *statuses, *(_WITH_BODY if body else ())}):
        model = Refusal if status == 422 else Problem
        found[status] = {"description": _WORDS[status]}
        if stream:
            # A model would be documented under the media type of the route's other answers.
            schema = {"$ref": f"#/components/schemas/{model.__name__}"}
            found[status]["content"] = {"application/json": {"schema": schema}}
        else:
            found[status]["model"] = model
    return found
