"""Runs an orchestrator to its end and kills its workers meanwhile."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ultramon.cli.output import say

if TYPE_CHECKING:
    from ultramon.cli.chaos.victims import Victims

_TICK_SECONDS = 0.05
_END_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
_MAX_LINE_BYTES = 64 * 1024
_MAX_READS_OF_THE_REST = 16
"""The largest pipe holds no more."""


class Ending(NamedTuple):
    """How the orchestrator ended."""

    command_line: tuple[str, ...]
    pid: int
    returncode: int
    timed_out: bool
    seconds: float
    kills: int


def attack(
    victims: Victims,
    command_line: tuple[str, ...],
    *,
    kills: int,
    every_seconds: float,
    timeout_seconds: float,
) -> Ending:
    """Run the command to its end, and kill workers meanwhile."""
    url = getattr(victims.backend, "whole_url", victims.backend.url)
    environment = {**os.environ, "ULTRAMON_RUN": victims.run, "ULTRAMON_BACKEND": url}
    began = time.monotonic()
    process = subprocess.Popen(
        command_line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A process group of its own can be ended whole.
        start_new_session=True,
    )
    killed = 0
    timed_out = False
    next_kill_at = began + _pause(every_seconds)
    try:
        with _Echo(process) as echo:
            while process.poll() is None and not timed_out:
                echo.pass_on()
                victims.look()
                now = time.monotonic()
                if killed < kills and now >= next_kill_at:
                    victim = victims.kill_one(spared=(process.pid, os.getpid()))
                    if victim is not None:
                        killed += 1
                        next_kill_at = now + _pause(every_seconds)
                        say(f"killed {victim.agent_id} (process {victim.pid})")
                timed_out = now - began >= timeout_seconds
            if timed_out:
                _end(process)
            echo.pass_on_the_rest()
    finally:
        _end(process)
    seconds = time.monotonic() - began
    return Ending(
        command_line,
        pid=process.pid,
        returncode=process.returncode,
        timed_out=timed_out,
        seconds=seconds,
        kills=killed,
    )


def _pause(seconds: float) -> float:
    return random.uniform(0.5, 1.5) * seconds


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
    process.wait()


class _Echo:
    """Passes the output of a command on to stderr, sanitised, line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self._stream = process.stdout
        self._rest = b""
        self._is_open = True

    def __enter__(self) -> _Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def pass_on(self, wait_seconds: float = _TICK_SECONDS) -> bool:
        """Wait for text and pass on whole lines; return whether there was text."""
        if not self._is_open:
            # The command closed its output and runs on.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_seconds)
            return False
        if not select.select([self._stream], [], [], wait_seconds)[0]:
            return False
        data = os.read(self._stream.fileno(), _MAX_LINE_BYTES)
        self._is_open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES or not data:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line or data:
                say(line.decode("utf-8", "replace").rstrip("\r"))
        return bool(data)

    def pass_on_the_rest(self) -> None:
        """Pass on what is left in the pipe; living workers may keep it open and print on."""
        for _ in range(_MAX_READS_OF_THE_REST):
            if not (self._is_open and self.pass_on(0.0)):
                break
        if self._rest:
            say(self._rest.decode("utf-8", "replace"))
