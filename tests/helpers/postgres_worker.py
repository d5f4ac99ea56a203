"""What the tests of the PostgreSQL backend run in processes of their own, to be cut off and killed.

Run as ``python postgres_worker.py <url> <mode> [arguments]``; every mode is a function below.
Answers are JSON, one line each, on standard output.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress

from helpers.fault_writer import AGENT, make_event, own, run_writer, say, start  # noqa: F401
from ultramon.backends.opening import open_backend
from ultramon.errors import StateError
from ultramon.notices.message import Draft
from ultramon.testing import make_record
from ultramon.testing.clock import START as NOW


def run_worker(url, mode, *arguments, state, script=__file__, **options):
    """Start a mode as a process of its own with pipes, and with a state directory."""
    environ = {"ULTRAMON_STATE_DIR": str(state)}
    return run_writer(url, mode, *arguments, script=script, env=environ, **options)


def append(url: str, name: str, count: str) -> None:
    """Append events when asked to begin, each in a transaction that takes its time to commit."""
    backend = open_backend(url)
    chance = random.Random(name)
    backend.change_mark()
    say("ready")
    sys.stdin.readline()
    for n in range(int(count)):
        event = make_event(name, n=n)
        with backend.database.transaction(durable=False) as connection:
            backend.log.insert(connection, [event])
            connection.execute("SELECT pg_sleep(%s)", (chance.choice((0, 0, 0.001, 0.01)),))
    say("done")


def beat(url: str, seed: str, rounds: str, count: str) -> None:
    """Beat for agents and record them together, in an order of one's own; say what went wrong."""
    from ultramon.backends.base import Save

    backend = open_backend(url)
    chance = random.Random(int(seed))
    records = [make_record(f"a-{number}", seq=1) for number in range(int(count))]
    say("ready")
    sys.stdin.readline()
    wrong = []
    for _ in range(int(rounds)):
        chance.shuffle(records)
        for record in records:
            record.seq += 1
        try:
            lost = backend.heartbeat([(record.agent_id, 1) for record in records], NOW)
            told = backend.record_together([Save(record, [], False) for record in records])
            wrong += lost + [str(error) for error in told if error]
        except StateError as error:
            wrong.append(str(error))
    say(wrong)


def load(url: str, name: str) -> None:
    """Store states, events and messages until the input closes; say what was acknowledged."""
    import select

    backend = open_backend(url)
    record = start(backend, name, takeover=True)
    say("ready")
    n = 0
    while not select.select([0], [], [], 0)[0]:
        n += 1
        record.seq += 1
        try:
            backend.record(record, [make_event(name, n=n)], durable=True)
        except StateError:
            record.seq -= 1
        else:
            say(["event", n])
        if backend.queue.queue_message(Draft(f"{name}-boss", str(n)), now=NOW) is not None:
            say(["message", n])
    until = time.monotonic() + 30
    while backend.outbox.kept()[:2] != (0, 0) and time.monotonic() < until:
        with suppress(StateError):  # not back yet for this question
            backend.heartbeat([(name, 1)], NOW)
    backend.close()
    say("end")


def crash(url: str) -> None:
    """Start an agent; when asked, and the database is away, end it and another one; then wait."""
    from ultramon import ContextConfig, create_context_monitor
    from ultramon.testing import fill

    backend = open_backend(url)
    config = ContextConfig(
        context_limit_tokens=10_000, save_interval_seconds=0.1, store_timeout_seconds=0.2
    )
    old = create_context_monitor("old", config, backend=backend).start()
    say("started")
    sys.stdin.readline()
    young = create_context_monitor("young", config, backend=backend).start()
    for monitor in (old, young):
        fill(monitor, 0.9)
    old.hand_off(notes="what was learned")
    old.stop("returned")
    young.stop("failed")
    backend.queue.queue_message(Draft("boss", "goodbye"), now=NOW)
    until = time.monotonic() + 30
    while not _are_over(backend, "old", "young") and time.monotonic() < until:
        os.sched_yield()
    say("kept")
    sys.stdin.read()


def brief(url: str, agent_id: str, is_early: str) -> None:
    """Be an agent that starts now or when asked, then completes two tasks, stops and exits."""
    from ultramon import ContextConfig, create_context_monitor

    config = ContextConfig(store_timeout_seconds=0.2)
    monitor = create_context_monitor(agent_id, config, run="audit", backend=open_backend(url))
    if is_early == "True":
        monitor.start()
    say("ready")
    sys.stdin.readline()
    if is_early != "True":
        monitor.start()
    monitor.plan(["one", "two"])
    for name in ("one", "two"):
        monitor.complete_task(name)
    monitor.stop()


def doubt(url: str, agent_id: str) -> None:
    """Start an agent when asked, end it while the database is away, and wait."""
    from ultramon import ContextConfig, create_context_monitor

    backend = open_backend(url)
    backend.change_mark()
    say("connected")
    sys.stdin.readline()
    config = ContextConfig(save_interval_seconds=0.1)
    monitor = create_context_monitor(agent_id, config, backend=backend).start()
    monitor.plan(["one", "two"])
    monitor.complete_task("one")
    monitor.hand_off(notes="what was learned")
    monitor.stop("returned")
    until = time.monotonic() + 30
    while not _are_over(backend, agent_id) and time.monotonic() < until:
        os.sched_yield()
    say("kept")
    sys.stdin.read()


def _are_over(backend, *agent_ids: str) -> bool:
    entries = [backend.outbox.states_of(name) for name in agent_ids]
    return all(found and '"active":false' in found[0].body["state"] for found in entries)


VERBS = {
    "track": lambda m, _: m.track_content("some words " * 20),
    "crossing": lambda m, _: m.report_usage(input_tokens=9_000),
    "plan": lambda m, words: m.plan(words),
    "complete": lambda m, words: m.complete_task(words[0]),
    "hand_off": lambda m, _: m.hand_off(notes="what was learned"),
    "stop": lambda m, _: m.stop("returned"),
}


def agent(url: str, hostname: str, agent_id: str) -> None:
    """Be an agent on a host of one's own; do what each line says; say how long that took."""
    import socket

    from ultramon import ContextConfig, HandoffRecord, create_context_monitor
    from ultramon.errors import HandoffTakenError

    if hostname:
        socket.sethostname(hostname)
    backend = open_backend(url)
    config = ContextConfig(
        context_limit_tokens=10_000,
        save_interval_seconds=0.5,
        heartbeat_interval_seconds=1.0,
        lost_after_seconds=3.5,
    )
    monitor = create_context_monitor(agent_id, config, run="audit", backend=backend)
    for line in sys.stdin:
        verb, *words = line.split()
        began = time.perf_counter()
        answer: object = None
        if verb == "start":
            monitor.start()
        elif verb == "send":
            answer = backend.queue.queue_message(Draft(words[0], words[1]), now=time.time())
        elif verb == "kept":
            answer = list(backend.outbox.kept()[:2])
        elif verb == "claim":
            try:
                HandoffRecord.model_validate_json(line[6:]).claim(agent_id, backend)
            except HandoffTakenError as error:
                answer = error.successor_id
            else:
                answer = agent_id
        else:
            VERBS[verb](monitor, words)
        say([answer, time.perf_counter() - began])


def orchestrate(url: str, hostname: str) -> None:
    """Look after the run; say each event, with the handoff that it brings."""
    import socket

    from ultramon import Fleet

    socket.sethostname(hostname)
    fleet = Fleet("audit", backend=url, poll_interval_seconds=0.2)
    say("ready")
    for event in fleet.watch():
        handoff = event.handoff if event.name == "handoff_ready" else None
        text = None if handoff is None else handoff.model_dump_json(by_alias=True)
        say([event.name, event.agent_id, text])


def cancel(url: str, sender: str, category: str) -> None:
    """Cancel messages while the database is away; say what that returned, and wait."""
    say(open_backend(url).queue.cancel_messages_from(sender, category))
    sys.stdin.read()


def drain(url: str) -> None:
    """Store what waits on this machine."""
    backend = open_backend(url)
    until = time.monotonic() + 30
    while backend.outbox.kept()[:2] != (0, 0) and time.monotonic() < until:
        backend.queue.sender.wake()
    say("drained" if backend.outbox.kept()[:2] == (0, 0) else "kept")


def keep(url: str, name: str, count: str) -> None:
    """Send messages while the database is away; say what that returned."""
    queue = open_backend(url).queue
    say([queue.queue_message(Draft("boss", f"{name} {n}"), now=NOW) for n in range(int(count))])


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1], *sys.argv[3:])
