"""What the fault tests run in processes of their own: writers to be killed, starved and fenced.

Run as ``python fault_writer.py <directory> <mode> [arguments]``; every mode is a function below.
Answers are JSON, one line each, on standard output.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from helpers import IMPORT_PATH
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import Journal
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.opening import open_backend
from ultramon.errors import FencedError, StateError, StateWriteError
from ultramon.state.liveness import judge
from ultramon.system.files import open_private
from ultramon.system.locks import Lock
from ultramon.system.processes import this_machine
from ultramon.testing import samples
from ultramon.testing.clock import START as NOW
from ultramon.testing.samples import make_record

AGENT = "writer"
IMPATIENT = {"ULTRAMON_STORE_TIMEOUT_SECONDS": "0.2"}
"""The environment of a writer whose store refuses for good: it waits for it all the same."""


def make_event(agent_id: str = AGENT, generation: int = 1, **values):
    """Return an event as it goes into the journal."""
    return samples.make_event(agent_id, "agent_started", generation=generation, **values)


def start(backend, agent_id: str = AGENT, *, takeover: bool = False, at: float = NOW, **values):
    """Start an agent straight on a backend, continuing the stored sequence."""
    made = []

    def build(stored, generation):
        seq = 0 if stored is None else stored.seq
        extra = {} if stored is None else stored.extra
        made.append(make_record(agent_id, generation, seq=seq, extra=extra, at=at, **values))
        return made[-1], []

    backend.start_agent(agent_id, build, takeover=takeover, now=at, machine=this_machine())
    return made[-1]


def run_writer(
    directory: object, mode: str, *arguments: object, before=(), script=__file__, **options
):
    """Start a mode as a process of its own with pipes; `answer` reads what it says."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": IMPORT_PATH}
    environ |= {"PYTHONHASHSEED": "0", **options.pop("env", {})}
    environ = {name: value for name, value in environ.items() if value is not None}
    command = [*before, sys.executable, "-B", script, directory, mode, *arguments]
    return subprocess.Popen(
        [str(part) for part in command],
        **{
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "env": environ,
            **options,
        },
    )


def answer(process):
    """Return the next answer of a writer, None when it has ended."""
    line = process.stdout.readline()
    return json.loads(line) if line else None


def finish(process):
    """Let a writer end by closing its input; return all it still said."""
    out, _ = process.communicate()
    return [json.loads(line) for line in out.splitlines()]


def say(value: object) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())


def loop(directory: str) -> None:
    """Write for ever; say each sequence number once it is acknowledged."""
    backend = LocalBackend(directory)
    record = start(backend)
    while True:
        record.seq += 1
        backend.record(record, [], durable=True)
        say(record.seq)


def once(directory: str, with_event: str) -> None:
    """Write sequence number 1; when asked, 2 between two calls of getppid; say the outcome."""
    backend = LocalBackend(directory)
    record = start(backend)
    record.seq = 1
    backend.record(record, [make_event(n=1)], durable=True)
    events = [make_event(n=2)] if with_event == "event" else []
    record.seq = 2
    say("ready")
    select.select([0], [], [])
    os.getppid()
    try:
        outcome = ["stored", str(backend.record(record, events, durable=True))]
    except StateError as error:
        outcome = [type(error).__name__, error.reason]
    os.getppid()
    say(outcome)


def live(directory: str, lives: str) -> None:
    """Start when asked, between two calls of getppid, then work, hand off and end; say the log.

    With two lives the agent has ended once before it starts.
    """
    import logging

    import ultramon.backends.local.connection  # noqa: F401 - to load a module is no part of a start
    from ultramon import ContextConfig, create_context_monitor
    from ultramon.testing import FakeClock

    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("ultramon").addHandler(handler)
    clock = FakeClock()
    near = {"backend": LocalBackend(directory), "clock": clock}
    config = ContextConfig(context_limit_tokens=1_000)
    for _ in range(1, int(lives)):
        create_context_monitor(AGENT, config, **near).start().stop()
    monitor = create_context_monitor(AGENT, config, **near)
    say("ready")
    select.select([0], [], [])
    os.getppid()
    monitor.start()
    os.getppid()
    monitor.plan(["one", "two"])
    clock.advance(10)
    monitor.report_usage(input_tokens=900)
    monitor.complete_task("one")
    monitor.hand_off(notes="what was learned")
    monitor.stop("returned")
    say(lines)


def hand_off_and_vanish(directory: str) -> None:
    """Cross a rung and hand off, then end at once; say what was stored at each step."""
    from ultramon import ContextConfig, create_context_monitor, on

    files = StateDirectory(directory)

    @on("threshold")
    def say_level(event):
        say(["crossing", event.stored, files.read(AGENT).threshold_status])

    config = ContextConfig(context_limit_tokens=1_000, store_timeout_seconds=600)
    monitor = create_context_monitor(AGENT, config, backend=LocalBackend(directory)).start()
    say(["start", monitor.is_stored])
    monitor.report_usage(input_tokens=900)
    say(["hand_off", monitor.hand_off(notes="what was learned").stored])
    os._exit(0)


def own(store: str, takeover: str) -> None:
    """Own the agent; for each line of input write so many times and say (written, fenced)."""
    backend = open_backend(store)
    record = start(backend, takeover=takeover == "takeover")
    say(record.generation)
    for line in sys.stdin:
        written = fenced = 0
        while written + fenced < int(line):
            record.seq += 1
            try:
                backend.record(record, [], durable=False)
                written += 1
            except FencedError:
                fenced += 1
            except StateWriteError:
                record.seq -= 1  # the other one held the lock for too long: try again
        say([written, fenced, backend.heartbeat([(AGENT, record.generation)], NOW)])


def append(directory: str, agent_id: str, count: str) -> None:
    """Append events, three to a transaction, when asked to begin."""
    journal = Journal(directory)
    sys.stdin.readline()
    for first in range(0, int(count), 3):
        journal.append([make_event(agent_id, n=n) for n in range(first, first + 3)], 30.0)


def append_once(directory: str, timeout_seconds: str) -> None:
    """Append one event; say which error that gave, if any."""
    try:
        Journal(directory).append([make_event("once")], float(timeout_seconds))
        say([])
    except StateError as error:
        say([type(error).__name__])


def claim(directory: str, successor_id: str, count: str) -> None:
    """Claim many handoffs when asked to begin; say who holds each."""
    backend = LocalBackend(directory)
    sys.stdin.readline()
    say([backend.claim_handoff(f"h{n}", "pred", successor_id, now=NOW) for n in range(int(count))])


def beats(directory: str, *agent_ids: str) -> None:
    """Start agents, then beat for all of them when the input closes; say what went wrong."""
    backend = LocalBackend(directory)
    for agent_id in agent_ids:
        start(backend, agent_id)
    say("started")
    sys.stdin.read()
    try:
        backend.heartbeat([(agent_id, 1) for agent_id in agent_ids], NOW + 15)
    except StateError as error:
        say([type(error).__name__, error.reason])


def judge_without_descriptors(directory: str) -> None:
    """Judge the agent while no descriptor is left; say the verdict."""
    import resource

    record, machine = StateDirectory(directory).read(AGENT), this_machine()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = use_up_descriptors()
    verdict = judge(record, NOW, NOW, machine).verdict
    os.close(taken.pop())
    say(verdict)


def hold_lock(directory: str) -> None:
    """Hold the agent's lock until the input closes."""
    files = StateDirectory(directory)
    files.prepare()
    with files.locked(AGENT, 5.0):
        say("held")
        sys.stdin.read()


def hold_journal(directory: str) -> None:
    """Hold the write lock of the journal until the input closes."""
    import sqlite3

    StateDirectory(directory).prepare()
    Journal(directory).append([make_event("other")], 5.0)
    connection = sqlite3.connect(Path(directory) / "journal.sqlite3", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    sys.stdin.read()


def hold_file(directory: str, path: str) -> None:
    """Hold the lock on a file until the input closes."""
    with Lock(path, open_private, 5.0):
        say("held")
        sys.stdin.read()


def repair_and_die(directory: str, step: str) -> None:
    """Repair the journal; be killed at the nth time that a file or database is opened or moved."""
    left = int(step)

    def count(event: str, _arguments: object) -> None:
        nonlocal left
        if event in ("open", "os.rename", "os.remove", "sqlite3.connect"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    from ultramon.backends.local import repair  # noqa: F401 - its modules are no step

    sys.addaudithook(count)
    Journal(directory).repair(5.0)
    left = -1


def forks(directory: str) -> None:
    """Fork while owning an agent and holding a lock; say what the child could change."""
    from ultramon import ContextConfig, create_context_monitor

    state = StateDirectory(directory)
    backend = LocalBackend(directory)
    config = ContextConfig(context_limit_tokens=1000, on_error="raise")
    monitor = create_context_monitor(AGENT, config, backend=backend).start()
    before = state.read(AGENT).to_json(), len(backend.events().events)
    done, wait = os.pipe()
    with state.locked("other", 1.0):
        child = os.fork()
        if child == 0:
            monitor.report_usage(input_tokens=900)
            monitor.update_heartbeat()
            monitor.stop("failed")
            mine = create_context_monitor("child", config, backend=backend).start()
            mine.stop()
            backend.close()
            os.close(wait)
            os.read(done, 1)
            os._exit(0)
    os.close(done)
    with state.locked("other", 0.0):
        relocked = True
    os.close(wait)
    status = os.waitpid(child, 0)[1]
    after = state.read(AGENT).to_json(), len(backend.events().events)
    monitor.report_usage(input_tokens=900)
    monitor.stop()
    of_child = [e for e in backend.events().events if e["agentId"] == "child"]
    say(
        {
            "status": status,
            "relocked": relocked,
            "state_unchanged": before[0] == after[0],
            "new_events": after[1] - before[1] - len(of_child),
            "childs_own_events": len(of_child),
            "outcome": state.read(AGENT).outcome,
            "level": state.read(AGENT).threshold_status,
        }
    )


VERBS = {
    "start": lambda m: m.start(),
    "track_content": lambda m: m.track_content("some words " * 20, source="tool:read"),
    "report_usage": lambda m: m.report_usage(input_tokens=7500, output_tokens=10),
    "report_response": lambda m: m.report_response(
        {"usage": {"input_tokens": 7600, "output_tokens": 1}}
    ),
    "report_overflow": lambda m: m.report_overflow("nothing of the kind"),
    "fits": lambda m: m.fits("a large tool result"),
    "set_model": lambda m: m.set_model("claude-sonnet-4-5"),
    "set_host_limits": lambda m: m.set_host_limits(window_tokens=200_000),
    "plan": lambda m: m.plan(["one", "two", "three"]),
    "pending": lambda m: m.pending(),
    "set_current_task": lambda m: m.set_current_task("one"),
    "step": lambda m: m.step("parse", {"rows": 3}),
    "steps": lambda m: m.steps(),
    "complete_task": lambda m: m.complete_task("one"),
    "set_tasks_total": lambda m: m.set_tasks_total(3),
    "waiting": lambda m: m.waiting(),
    "leave_if_taken": lambda m: m.leave_if_taken(),
    "working": lambda m: m.working(),
    "record_compaction": lambda m: m.record_compaction(100),
    "clear": lambda m: m.clear(),
    "crossing": lambda m: m.report_usage(input_tokens=9500),
    "checkpoint": lambda m: m.checkpoint(notes="what was learned"),
    "hand_off": lambda m: m.hand_off(notes="what was learned"),
    "update_heartbeat": lambda m: m.update_heartbeat(),
    "get_state": lambda m: m.get_state(),
    "get_threshold_action": lambda m: m.get_threshold_action(),
    "explain": lambda m: m.explain(),
    "pinned_rules": lambda m: m.pinned_rules(),
    "stop": lambda m: m.stop(),
}


def verbs(directory: str, on_error: str, *faults: str) -> None:
    """Call every verb of a monitor; say what raised and what was logged.

    ``umask=<octal>`` comes first; ``no-descriptors`` uses all descriptors up after the start;
    ``no-stop`` leaves the agent running; with ``report=<path>`` the answer goes there; with
    ``wait`` the process ends when its input closes.
    """
    import logging

    if faults and faults[0].startswith("umask="):
        os.umask(int(faults[0][6:], 8))
    from ultramon import ContextConfig, create_context_monitor

    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("ultramon").addHandler(handler)
    if directory:
        os.environ["ULTRAMON_STATE_DIR"] = directory
    monitor = create_context_monitor(
        AGENT, ContextConfig(context_limit_tokens=10_000, on_error=on_error)
    )
    raised = {}
    taken: list[int] = []
    for name, call in VERBS.items():
        if name == "stop" and "no-stop" in faults:
            break
        try:
            call(monitor)
        except StateError as error:
            raised[name] = type(error).__name__
        if name == "start" and raised:
            break
        if name == "start" and "no-descriptors" in faults:
            taken = use_up_descriptors()
    for fd in taken:
        os.close(fd)
    reply = json.dumps({"raised": raised, "log": lines, "level": str(monitor.get_state().action)})
    reports = [fault[7:] for fault in faults if fault.startswith("report=")]
    if reports:
        Path(reports[0]).write_text(reply)
    else:
        os.write(1, (reply + "\n").encode())
    if "wait" in faults:
        sys.stdin.read()


def use_up_descriptors(spare: int = 0) -> list[int]:
    """Open descriptors until there are no more, then give some back."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(spare):
        os.close(taken.pop())
    return taken


def descriptors(directory: str, rounds: str) -> None:
    """Fail to save for want of descriptors, again and again; say whether any got lost."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    backend = LocalBackend(directory)
    record = start(backend)
    backend.record(record, [make_event(n=0)], durable=True)
    before = len(os.listdir("/proc/self/fd"))
    kinds: dict[str, int] = {}
    for number in range(1, int(rounds) + 1):
        taken = use_up_descriptors(spare=number % 4)
        record.seq = number
        try:
            stored = backend.record(record, [make_event(n=number)], durable=True)
            kind = "stored" if stored else "pending"
        except StateError as error:
            kind = type(error).__name__
        kinds[kind] = kinds.get(kind, 0) + 1
        for fd in taken:
            os.close(fd)
        if number % 10 == 0:
            backend.close()
    backend.record(record, [make_event(n=number)], durable=True)
    backend.close()
    backend.events()
    say({"before": before, "after": len(os.listdir("/proc/self/fd")), "kinds": kinds})


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1], *sys.argv[3:])
