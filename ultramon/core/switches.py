"""Variables that turn something on or off."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_on(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable says yes, in any usual spelling; empty or missing says no."""
    return environ.get(name, "").lower() not in ("", "0", "false", "no", "off")
