"""The host's own configuration, as far as a hook needs it. Standard library only."""

from __future__ import annotations

import os

from ultramon.system.files import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 1 << 20
_LIMIT = b"model_auto_compact_token_limit"


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the host's directory: ``CODEX_HOME``, else ``~/.codex``."""
    return environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")


def compaction_tokens(environ: Mapping[str, str]) -> int | None:
    """Return the tokens at which the host compacts, as ``config.toml`` says; None = it does not.

    Options of a command line that say otherwise are not seen.
    """
    path = os.path.join(home_directory(environ), "config.toml")
    try:
        data = read_start(path, _MAX_BYTES)
    except OSError:
        return None
    # A whole TOML parser would take a hook longer than all else it does.
    for line in data.splitlines() if _LIMIT in data else ():
        name, _, value = line.partition(b"=")
        if name.strip().startswith(b"["):
            break  # only the members before the first table are the host's own
        if name.strip() == _LIMIT:
            digits = value.partition(b"#")[0].strip().replace(b"_", b"")
            if digits.isdigit() and len(digits) <= 10:
                return min(int(digits), 1_000_000_000) or None
    return None
