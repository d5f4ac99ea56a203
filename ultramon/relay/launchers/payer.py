"""Who pays for the contexts of a host: a subscription, or a key that is billed by use.

As far as the environment, the host's settings and its own file of logins say so. No key is kept or
shown, only where it was found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ultramon.system.files import read_start

SUBSCRIPTION = "subscription"
API_KEY = "API key"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Payer:
    """What the requests of a host are charged to.

    Attributes:
        kind: `SUBSCRIPTION`, a fixed price; `API_KEY`, or another account that is billed by use;
            None = nothing says it.
        source: What says so, such as ``ANTHROPIC_API_KEY``; empty = nothing does.
    """

    kind: str | None = None
    source: str = ""

    def __str__(self) -> str:
        if self.kind is None:
            return "payment unknown"
        return f"{self.kind} ({self.source})" if self.source else self.kind


def read_object(path: str) -> dict[str, Any]:
    """Return the object that a JSON file of a host has; an empty one where it has none."""
    try:
        found = json.loads(read_start(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
