"""A host's own settings, as far as a hook needs them. Standard library only."""

from __future__ import annotations

from ultramon.system import compact_json
from ultramon.system.files import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_MAX_BYTES = 1 << 20
_MOST = 1e15
"""Beyond this, or infinite, a number is no setting."""


def read_layers(
    paths: Iterable[str], *, may_have_comments: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the objects in those files that can be read.

    Args:
        paths: JSON files, in the order in which one outranks those before it.
        may_have_comments: Whether the host skips comments in them.
    """
    for path in paths:
        try:
            data = read_start(path, _MAX_BYTES)
            if may_have_comments and b"/" in data:
                from ultramon.system.json_comments import without_comments

                data = without_comments(data.decode("utf-8")).encode("utf-8")
            settings = compact_json.loads(data)
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict):
            yield settings


def number_in(settings: dict[str, Any], *names: str) -> float | None:
    """Return the number behind the names of members; None where there is none."""
    value: object = settings
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _MOST else None
