"""Asks Codex itself which hooks it would run, and by which marks it knows them.

Codex runs a hook only where its mark is trusted. The relay trusts its own hooks for one run by
their marks; a switch that trusts all would run hooks as well that the user has not reviewed.
"""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError
from ultramon.relay.launchers.hooked_client import START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SOURCE = "sessionFlags"
_LIST = 2
_CLIENT = {"name": "ultramon", "version": "1"}


def listed_hooks(program: str, settings: Sequence[str]) -> dict[str, str]:
    """Return the mark of each hook of a command line that the client would run, by its name.

    Args:
        program: The client.
        settings: Arguments that name the hooks.

    Raises:
        ConfigurationError: The client does not answer.
    """
    try:
        process = subprocess.Popen(
            [program, "app-server", *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        allowed = f"Codex; it does not start: {error.strerror}"
        raise ConfigurationError("program", program, allowed) from error
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        for answer in _ask(process):
            if answer.get("id") == _LIST:
                return dict(_marks(answer))
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
    allowed = f"Codex; it did not list its hooks within {START_SECONDS} s"
    raise ConfigurationError("program", program, allowed)


def toml_text(text: str) -> str:
    """Return a text as TOML."""
    # Every JSON string is a TOML string but for DEL, which TOML wants escaped as well.
    return json.dumps(text).replace("\x7f", "\\u007f")


def _ask(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Ask for the hooks, and yield what the client says."""
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": _CLIENT}},
        {"method": "initialized"},
        {"id": _LIST, "method": "hooks/list", "params": {}},
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in asked))
        process.stdin.flush()
    for line in process.stdout:
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                yield answer


def _marks(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    found = answer.get("result")
    folders = found.get("data") if isinstance(found, dict) else None
    for folder in folders if isinstance(folders, list) else ():
        for hook in folder["hooks"]:
            if hook["source"] == _SOURCE and hook["enabled"]:
                yield hook["key"], hook["currentHash"]
