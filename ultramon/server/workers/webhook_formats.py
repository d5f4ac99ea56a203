"""The bodies of webhooks: a notice as its receiver reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.notices.models import Notice

_MOST_DISCORD_CHARS = 2_000
_MOST_NTFY_BYTES = 4_096  # ntfy makes an attachment of a longer text
_URGENT = "urgent"


def _ultramon(notice: Notice) -> bytes:
    return _ascii(notice.model_dump(mode="json", by_alias=True))


def _slack(notice: Notice) -> bytes:
    # Slack takes <!channel> for a mention and <url|text> for a link, wherever it came from.
    text = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _ascii({"text": text})


def _discord(notice: Notice) -> bytes:
    text = notice.text
    if len(text) > _MOST_DISCORD_CHARS:
        text = text[: _MOST_DISCORD_CHARS - 1] + "…"
    return _ascii({"content": text, "allowed_mentions": {"parse": []}})


def _ntfy(notice: Notice) -> bytes:
    cut = notice.text.encode("utf-8", "replace")[:_MOST_NTFY_BYTES]
    return cut.decode("utf-8", "ignore").encode()


def _ascii(value: object) -> bytes:
    return json.dumps(value).encode("ascii")


JSON, SLACK, DISCORD, NTFY = "json", "slack", "discord", "ntfy"
FORMATS: dict[str, Callable[[Notice], bytes]] = {
    JSON: _ultramon,
    SLACK: _slack,
    DISCORD: _discord,
    NTFY: _ntfy,
}
"""Makes the body, by format."""


def headers_of(name: str, notice: Notice) -> dict[str, str]:
    """Return what the headers of a request say about its body.

    Args:
        name: One of `FORMATS`.
        notice: What is in the body.
    """
    if name != NTFY:
        return {"Content-Type": "application/json"}
    priority = "high" if notice.delivery == _URGENT else "default"
    return {"Content-Type": "text/plain; charset=utf-8", "Title": "ultramon", "Priority": priority}
