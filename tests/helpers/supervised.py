"""Supervised contexts and their orchestrators, in processes of their own that may be killed.

Run as ``python supervised.py <mode>``. Each piece of work is one line in the file that ``EFFECTS``
names. ``DIE_AT`` kills the process at so many function calls of the package, a ``VICTIMS`` path at
most so many workers, each at a random one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from helpers import IMPORT_PATH
from helpers.waiting import until
from ultramon import ContextConfig, Fleet, create_context_monitor, worker
from ultramon.handoff import HandoffRecord
from ultramon.system.processes import process_started_at

CONFIG = ContextConfig(context_limit_tokens=10_000, on_error="raise")
PIECE = "It was a dark and stormy night. " * 100
"""About 700 tokens: ten of them reach the warning."""


def environment(env, tmp_path, **more):
    """Return the environment for a process of a mode."""
    given = {name: str(value) for name, value in more.items()}
    return {**env, "PYTHONPATH": IMPORT_PATH, "EFFECTS": str(tmp_path / "effects"), **given}


def spawner(tmp_path, mode, *, in_a_group=False, **more):
    """Return a `spawn` that starts workers of a mode, each in a process group if that is said."""

    def spawn(job):
        handoff = job.handoff and job.handoff.to_json()
        work = json.dumps({"items": job.items, "handoff": handoff})
        env = environment(job.env, tmp_path, WORK=work, **more)
        command = [sys.executable, "-B", __file__, mode]
        return subprocess.Popen(command, env=env, start_new_session=in_a_group)

    return spawn


def effects(tmp_path):
    """Return the pieces of work that were done, in order."""
    path = tmp_path / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def do(item):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(json.dumps(item) + "\n")


def obey():
    with worker(CONFIG) as agent:
        for item in agent.pending():
            agent.track_content(PIECE)
            do(item)


def by_hand():
    """An agent that knows of its job only what it is given as text."""
    given = json.loads(os.environ["WORK"])
    handoff = HandoffRecord.model_validate(given["handoff"]) if given["handoff"] else None
    with create_context_monitor(config=CONFIG, continues=handoff) as monitor:
        monitor.plan(given["items"])
        for item in monitor.pending():
            with monitor.task(item):
                do(item)
                action = monitor.track_content(PIECE)
            if action.should_return:
                monitor.hand_off()
                return


def own_words():
    """An agent that has words of its own for its items, and a task that is none."""
    tasks = [*(f"read {item}" for item in json.loads(os.environ["WORK"])["items"]), "sum up"]
    with create_context_monitor(config=CONFIG) as monitor:
        monitor.plan(tasks)
        for name in monitor.pending():
            with monitor.task(name):
                do(name)


def fills():
    """Fills the disk of its store in an item ``fill``, until the store has refused a save twice."""
    ballast = Path(os.environ["ULTRAMON_STATE_DIR"]).parent / "ballast"
    config = ContextConfig(context_limit_tokens=10_000, store_timeout_seconds=600)
    with second_refusal(ballast.unlink), worker(config) as agent:
        for item in agent.pending():
            if item == "kill" and not agent.handoff:
                os.kill(os.getpid(), signal.SIGKILL)
            do(item)
            if item == "fill":
                fill_disk(ballast)


@contextmanager
def second_refusal(then):
    """Call something when a store has refused to save an agent for the second time."""
    refused = []

    class Refusals(logging.Handler):
        def emit(self, record):
            if "is not saved" in record.msg:
                refused.append(record)
                if len(refused) == 2:
                    then()

    logger, handler = logging.getLogger("ultramon.monitor"), Refusals()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


def fill_disk(ballast):
    """Use up all space with one file."""
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def poison():
    with worker(CONFIG) as agent:
        for item in agent.pending():
            if item.startswith("poison"):
                os.kill(os.getpid(), signal.SIGKILL)
            do(item)


def fails():
    with worker(CONFIG) as agent:
        for item in agent.pending():
            if item.startswith("poison"):
                raise ZeroDivisionError
            do(item)


def in_steps():
    """Does each item in four steps; the first agent is killed behind the one of ``DIES_BEHIND``."""
    with worker(CONFIG) as agent:
        for item in agent.pending():
            known = agent.steps()
            for step in ("read", "parse", "load", "check"):
                if step in known:
                    continue
                do([item, step, agent.agent_id])
                agent.step(step, {"by": agent.agent_id, "behind": list(agent.steps())})
                is_last = [item, step] == json.loads(os.environ["DIES_BEHIND"])
                if is_last and agent.agent_id == "job.1":
                    os.kill(os.getpid(), signal.SIGKILL)
            agent.notes = json.dumps(agent.steps())


def lingers():
    """Works on something, and never ends."""
    with create_context_monitor(config=CONFIG) as monitor, monitor.task("something"):
        do("something")
        signal.pause()


def run_by_target(job):
    assert os.environ["ULTRAMON_AGENT_ID"] == job.agent_id
    obey()


def exits():
    raise SystemExit(3)


def lazy():
    with worker(CONFIG):
        pass


def claims():
    with worker(CONFIG) as agent:
        for _item in agent.pending():
            pass


def careless():
    """Claims the first of its items without doing it, unless it is alone."""
    with worker(CONFIG) as agent:
        items = agent.monitor.pending()
        for item in agent.pending():
            if item != items[0] or len(items) == 1:
                do(item)


def large():
    """Reads an item of many pages, some of them per context."""
    with worker(CONFIG) as agent:
        for item in agent.pending():
            page = int(agent.handoff.notes) if agent.handoff and agent.handoff.notes else 0
            while page < int(os.environ["PAGES"]) and not agent.should_hand_over:
                agent.track_content(PIECE)
                do(f"{item}/{page}")
                page += 1
            if page < int(os.environ["PAGES"]):
                agent.notes = str(page)
                break


def deaf():
    """Should return, and works on until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "STUBBORN" in os.environ else signal.SIG_DFL)
    with worker(CONFIG) as agent:
        for item in agent.pending():
            agent.report_usage(input_tokens=9000)
            do(item)
            while True:
                signal.pause()


def waits():
    """Does its first item, then waits until it is asked to return."""
    with worker(CONFIG) as agent:
        for item in agent.pending():
            do(item)
            until(lambda: agent.should_hand_over)


def employs():
    """Starts a program for each item and leaves it running; the item says how it ends itself."""
    with worker(CONFIG) as agent:
        for item in agent.pending():
            stubborn = "trap '' TERM; " if "STUBBORN" in os.environ else ""
            tool = subprocess.Popen(
                ["sh", "-c", f"{stubborn}echo; exec tail -f /dev/null >/dev/null"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            tool.stdout.readline()
            do([tool.pid, process_started_at(tool.pid)])
            if item == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if item == "wait":
                agent.report_usage(input_tokens=9000)
                while True:
                    signal.pause()


FRAGILE = ContextConfig(
    context_limit_tokens=10_000, heartbeat_interval_seconds=0.5, lost_after_seconds=2.0
)
"""An agent that is lost by silence soon."""


def holds():
    """Holds a lock on each item that it works on; ``FIRST`` says what becomes of the first agent.

    The effects say what each agent begins and does, and which item it finds held by another one.
    """
    with worker(FRAGILE) as agent:
        for item in agent.pending():
            lock = os.open(f"{os.environ['EFFECTS']}.{item}.lock", os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                do(["held twice", agent.agent_id, item])
            do(["begun", agent.agent_id, item, os.getpid()])
            if agent.agent_id == "job.1":
                become(os.environ["FIRST"], lock)
            do(["done", agent.agent_id, item])
            os.close(lock)


def afar():
    """As `holds`, with an environment that the system does not show."""
    os.environ.update(json.loads(sys.argv[2]))
    holds()


def become(kind, lock):
    """Continue when the test says so, be suspended or killed; a tool that is left has the lock."""
    if kind in ("leaves", "escapes"):
        subprocess.Popen(
            ["tail", "-f", "/dev/null"],
            pass_fds=[lock],
            stdout=subprocess.DEVNULL,
            start_new_session=kind == "escapes",
        )
    go = f"{os.environ['EFFECTS']}.go"
    if kind == "suspended":
        while not os.path.exists(go):
            os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "alive":
        until(lambda: os.path.exists(go))
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def orchestrate():
    """Supervise what ``SUPERVISE`` says; print the result."""
    given = json.loads(os.environ["SUPERVISE"])
    mode, items, verifies = given.pop("mode"), given.pop("items"), given.pop("verifies", True)
    names = ("EFFECTS", "PYTHONPATH", "VICTIMS", "SEED", "PAGES", "FIRST")
    keep = {name: os.environ[name] for name in names if name in os.environ}
    in_a_group, hangs = given.pop("in_a_group", False), given.pop("hangs", False)
    dies_behind = given.pop("dies_behind", None)

    def spawn(job):
        process = subprocess.Popen(
            [sys.executable, "-B", __file__, mode],
            env={**job.env, "DIE_AT": "", **keep},
            start_new_session=in_a_group,
        )
        if dies_behind is not None:
            # Between the start of a process and its record.
            until(lambda: os.path.exists(dies_behind), process)
            os.kill(os.getpid(), signal.SIGKILL)
        return process

    def verify(item):
        if hangs:
            say("verifying")
            threading.Event().wait()
        with open(os.environ["EFFECTS"]) as file:
            return json.dumps(item) + "\n" in file

    fleet = Fleet("job", poll_interval_seconds=0.2)
    options = {"verify": verify} if verifies else {}
    if "announce" in given:
        given.pop("announce")
        options["on_event"] = lambda event: say(event.name)
    if given.pop("is_async", False):
        result = asyncio.run(fleet.supervise_async(spawn, items, **options, **given))
    else:
        result = fleet.supervise(spawn, items, **options, **given)
    say(json.dumps(result.to_json()))


def say(line):
    os.write(1, f"{line}\n".encode())


def start_orchestrator(
    tmp_path, mode, items, *, die_at="", victims="", seed=0, first="", before=(), **given
):
    """Start an orchestrator in a process group of its own, by a program if one is given."""
    more = {"DIE_AT": die_at, "VICTIMS": victims, "SEED": seed, "FIRST": first}
    given = {"mode": mode, "items": items, **given}
    env = environment(os.environ, tmp_path, SUPERVISE=json.dumps(given), **more)
    return subprocess.Popen(
        [*before, sys.executable, "-B", __file__, "orchestrate"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def die_at(calls):
    """Kill this process at a function call of the package."""
    left = calls

    def count(frame, event, _):
        nonlocal left
        if event == "call" and "ultramon" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def die_in(moment, function):
    """Kill this process at the first ``call`` or ``return`` of a function of the package."""

    def look(frame, event, _):
        code = frame.f_code
        if (event, code.co_name) == (moment, function) and "ultramon" in code.co_filename:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def become_a_victim(path, count):
    """Die at a random moment, if fewer than `count` did."""
    for number in range(count):
        try:
            os.close(os.open(f"{path}.{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        chance = random.Random(f"{os.environ['SEED']} {number}")
        die_at(int(2 ** chance.uniform(0, 13)))
        return


if __name__ == "__main__":
    mode = sys.argv[1]
    if os.environ.get("DIE_AT"):
        die_at(int(os.environ["DIE_AT"]))
    if os.environ.get("DIE_IN"):
        die_in(*os.environ["DIE_IN"].split())
    if os.environ.get("VICTIMS") and mode != "orchestrate":
        become_a_victim(*json.loads(os.environ["VICTIMS"]))
    globals()[mode]()
