"""The window that the host works with, and where it is configured to compact or refuse.

Standard library only. Without a configured window the host (2.1.330) was not seen to compact at
any number of tokens, so none is assumed. With compaction switched off it sends no request beyond a
number of its own.
"""

from __future__ import annotations

import os

from ultramon.hosts.calls.host_settings import read_layers
from ultramon.hosts.claude_code import MOST_VARIABLE, SMALL_VARIABLE
from ultramon.system import compact_json
from ultramon.system.environment import is_on
from ultramon.system.files import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

WINDOW_VARIABLE = "CLAUDE_CODE_AUTO_COMPACT_WINDOW"
PERCENT_VARIABLE = "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"
OUTPUT_VARIABLE = "CLAUDE_CODE_MAX_OUTPUT_TOKENS"
REFUSAL_VARIABLE = "CLAUDE_CODE_BLOCKING_LIMIT_OVERRIDE"
VARIABLES = (
    "CLAUDE_CONFIG_DIR",
    WINDOW_VARIABLE,
    PERCENT_VARIABLE,
    OUTPUT_VARIABLE,
    SMALL_VARIABLE,
    MOST_VARIABLE,
    REFUSAL_VARIABLE,
    "DISABLE_AUTO_COMPACT",
    "DISABLE_COMPACT",
)
"""All that is read here; none is secret."""

# The host's own arithmetic, confirmed by recordings: it compacted at 67,000 of 100,000 and
# 167,000 of 200,000 tokens, and refused at 177,000 of 200,000.
LEAST_WINDOW_TOKENS = 100_000
OUTPUT_RESERVE_TOKENS = 20_000
COMPACTION_RESERVE_TOKENS = 13_000
REFUSAL_RESERVE_TOKENS = 3_000
_ENABLED = "autoCompactEnabled"
_MAX_ANSWERS_BYTES = 1 << 25
"""Of the file in which the host keeps a user's answers, with a history for each project."""


def host_window_tokens(environ: Mapping[str, str], reported_tokens: int | None) -> int | None:
    """Return the window that the host is made to work with; None = the model decides.

    Args:
        environ: The host's environment.
        reported_tokens: The window that a status line reported, maybe in another environment;
            or None.
    """
    windows = [] if reported_tokens is None else [reported_tokens]
    if is_on(SMALL_VARIABLE, environ):
        from ultramon.context.limits import DEFAULT_WINDOW_TOKENS

        windows.append(DEFAULT_WINDOW_TOKENS)
    most = _whole(environ.get(MOST_VARIABLE))
    # Alone the variable changes nothing (2.1.330).
    if most is not None and is_on("DISABLE_COMPACT", environ):
        windows.append(most)
    return min(windows, default=None)


def compaction_limits(
    environ: Mapping[str, str], project: str | None, model: str | None, window_tokens: int | None
) -> tuple[int | None, int | None]:
    """Return the tokens at which the host compacts by itself, and at which it refuses requests.

    Args:
        environ: The host's environment.
        project: The project's directory, for its settings; or None.
        model: The model, which may have a setting of its own.
        window_tokens: The model's window, which the configured one cannot exceed; None = unknown.

    Returns:
        Each None where it is not configured: the host refuses only where it may not compact.
    """
    settings: dict[str, Any] = {}
    for layer in _layers(environ, project):
        settings.update(layer)
    output = min(
        _whole(environ.get(OUTPUT_VARIABLE)) or OUTPUT_RESERVE_TOKENS, OUTPUT_RESERVE_TOKENS
    )
    if _is_off(environ, settings):
        refusal = _whole(environ.get(REFUSAL_VARIABLE))
        if refusal is None and window_tokens is not None:
            refusal = window_tokens - output - REFUSAL_RESERVE_TOKENS
        return None, refusal if refusal is not None and refusal > 0 else None
    configured = (
        _whole(environ.get(WINDOW_VARIABLE))
        or _whole(_model_setting(settings, model))
        or _whole(settings.get("autoCompactWindow"))
    )
    if configured is None:
        return None, None
    window = max(configured, LEAST_WINDOW_TOKENS)
    if window_tokens is not None:
        window = min(window, window_tokens)
    trigger = window - output - COMPACTION_RESERVE_TOKENS
    percent = _whole(environ.get(PERCENT_VARIABLE))
    if percent is not None and percent <= 100:
        trigger = min(trigger, (window - OUTPUT_RESERVE_TOKENS) * percent // 100)
    return trigger if trigger > 0 else None, None


def _is_off(environ: Mapping[str, str], settings: dict[str, Any]) -> bool:
    """Return whether the host is configured not to compact by itself."""
    if any(is_on(name, environ) for name in ("DISABLE_AUTO_COMPACT", "DISABLE_COMPACT")):
        return True
    chosen = settings.get(_ENABLED)
    return (_answer(environ) if chosen is None else chosen) is False


def _answer(environ: Mapping[str, str]) -> object:
    """Return what the user chose in the host's own menu; settings outrank it."""
    directory = environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~")
    try:
        data = read_start(os.path.join(directory, ".claude.json"), _MAX_ANSWERS_BYTES)
        # Most users were never asked; the file may hold megabytes of other things.
        answers = compact_json.loads(data) if _ENABLED.encode() in data else None
    except (OSError, ValueError):
        return None
    return answers.get(_ENABLED) if isinstance(answers, dict) else None


def config_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the user's own settings."""
    return environ.get("CLAUDE_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".claude")


def _layers(environ: Mapping[str, str], project: str | None) -> Iterator[dict[str, Any]]:
    """Return the settings that can be read, those that win last."""
    paths = [os.path.join(config_directory(environ), "settings.json")]
    if project:
        paths.append(os.path.join(project, ".claude", "settings.json"))
        paths.append(os.path.join(project, ".claude", "settings.local.json"))
    return read_layers(paths)


def _model_setting(settings: dict[str, Any], model: str | None) -> object:
    by_model = settings.get("modelSettings")
    own = by_model.get(model) if isinstance(by_model, dict) else None
    return own.get("autoCompactWindow") if isinstance(own, dict) else None


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    return value if type(value) is int and 0 < value <= 1_000_000_000 else None
