"""Agents in processes of their own, for the fleet tests: to be watched, suspended and killed.

Run as ``python fleet_worker.py <mode> [arguments]`` in the environment of `Fleet.env`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from helpers import IMPORT_PATH
from helpers.waiting import until
from ultramon import ContextConfig, HandoffRecord, create_context_monitor
from ultramon.errors import HandoffTakenError
from ultramon.testing import FakeClock, fill


def start_worker(fleet, agent_id, mode, *arguments, **options):
    """Start a mode as the process of an agent, with pipes."""
    return subprocess.Popen(
        command(mode, *arguments),
        **{
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "env": {**fleet.env(agent_id), "PYTHONPATH": IMPORT_PATH},
            **options,
        },
    )


def command(mode, *arguments):
    """Return the command line of a mode."""
    return [sys.executable, "-B", __file__, mode, *map(str, arguments)]


def tell(process, line):
    """Have an obedient worker do something; return its answer, when it is done."""
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def end(process):
    """Let a worker end by closing its input."""
    process.communicate()
    return process.returncode


def reap(process):
    """Kill a worker that still runs, and let go of its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            pipe.close()


def obey(clock=None):
    """Do what each line of input says; answer with the level, or the action asked for."""
    config = ContextConfig(context_limit_tokens=10_000, on_error="raise")
    stepped = FakeClock() if clock == "stepped" else None
    monitor = create_context_monitor(config=config, clock=stepped)
    blocks = {}
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "plan":
            monitor.plan(words)
        elif verb == "begin":
            blocks[words[0]] = monitor.task(words[0])
            blocks[words[0]].__enter__()
        elif verb == "done":
            blocks.pop(words[0]).__exit__(None, None, None)
        elif verb == "fill":
            fill(monitor, float(words[0]))
        elif verb == "advance":
            stepped.advance(float(words[0]))
        elif verb == "until_return":
            until(lambda: monitor.get_threshold_action().should_return)
        else:
            getattr(monitor, verb)(*words)
        say(monitor.get_threshold_action().action)


def claim(path, successor_id):
    """Claim a handoff when the input closes; say who has it."""
    from ultramon import open_backend

    handoff = HandoffRecord.model_validate_json(Path(path).read_text())
    say("ready")
    sys.stdin.read()
    try:
        handoff.claim(successor_id, open_backend())
        say(successor_id)
    except HandoffTakenError as error:
        say(error.successor_id)


def items(effects, given, before_handoff):
    """Work through items or a handoff; note each effect outside, hand off after so many."""
    handoff = HandoffRecord.model_validate_json(given) if given[0] == "{" else None
    config = ContextConfig(context_limit_tokens=10_000, on_error="raise")
    monitor = create_context_monitor(config=config, continues=handoff)
    monitor.plan([] if handoff else given.split(","))
    log = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with monitor:
        for number, item in enumerate(monitor.pending()):
            if number == int(before_handoff):
                fill(monitor, 0.9)
                monitor.hand_off()
                return
            with monitor.task(item):
                os.write(log, f"{item}\n".encode())
            monitor.update_heartbeat()


def say(line):
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
