"""Every system call of one update fails once, or is the last one: the file is old or new."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, IMPATIENT, answer, finish, make_event, run_writer, start
from helpers.requirements import missing, require_tool

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory

WORKERS = 2
# What SQLite and the state file do to the disk; a failing read of a clock or a lock byte is none.
CALLS = (
    "openat,newfstatat,fstat,flock,fchmod,chmod,mkdir,write,pwrite64,read,pread64,lseek,ftruncate,"
    "fallocate,fsync,fdatasync,rename,unlink,utimensat,fcntl,close"
)


def traced(directory, log, argument, *inject, mode="once"):
    """Run a writer under strace; return what it said in the end, and the calls of its update."""
    writer = run_writer(directory, mode, argument)
    assert answer(writer) == "ready"
    command = [require_tool("strace"), "-e", f"trace={CALLS},getppid", "-o", str(log), *inject]
    with subprocess.Popen(
        [*command, "-p", str(writer.pid)], stderr=subprocess.PIPE, text=True
    ) as tracer:
        first = tracer.stderr.readline()
        if "attached" not in first:
            finish(writer)
            missing(f"strace may not attach here: {first.strip()}")
        writer.stdin.write("go")
        said = finish(writer)
        tracer.stderr.read()
    return said, update_of(log.read_text().splitlines())


def update_of(lines):
    """Return the calls between the two markers as (name, how many of that name came, text)."""
    counts, update, markers = Counter(), [], 0
    for line in lines:
        found = re.match(r"(\w+)\(", line)
        if found is None:
            continue
        name = found[1]
        counts[name] += 1
        if name == "getppid":
            markers += 1
        elif markers == 1:
            update.append((name, counts[name], line))
    return update


@pytest.fixture(scope="module")
def update_calls(tmp_path_factory):
    """The system calls of one update, without and with an event, from an undisturbed run."""
    calls = {}
    for event in ("state", "event"):
        path = tmp_path_factory.mktemp("dry")
        said, update = traced(path / "state", path / "trace", event)
        assert said == [["stored", "True"]]
        calls[event] = [(name, nth) for name, nth, _ in update]
    return calls


def problem_of(directory, fault, said, update):
    """Return what is wrong after one injected fault, None when nothing is."""
    files = StateDirectory(str(directory))
    killed = fault == "KILL"
    if not killed and not any("(INJECTED)" in line for _, _, line in update):
        return "the fault was not injected into the update"
    if killed != (said == []):
        return f"said {said}"
    seq = files.read(AGENT).seq
    if killed:
        allowed = {1, 2}
    else:
        kind, reason = said[0]
        # On a slow machine a lock whose file could not be looked at is not tried a second time.
        if kind not in ("stored", "StateWriteError", "LockedError"):
            return f"raised {kind}: {reason}"
        allowed = {2} if kind == "stored" or "durability unknown" in reason else {1}
    if seq not in allowed:
        return f"seq {seq} after {said}"
    left = [path.name for path in Path(files.folder).iterdir()]
    if any(".corrupt-" in name for name in left):
        return "a good state was set aside"
    if not killed and any(name.endswith(".tmp") for name in left):
        return "a temporary file was left behind"
    return problem_afterwards(directory, said)


def problem_afterwards(directory, said):
    """Continue after the fault as the next owner would; return what is wrong then."""
    backend = LocalBackend(str(directory))
    record = start(backend)
    if record.generation != 2:
        return f"the next owner got generation {record.generation}"
    pending = backend.load(AGENT).record.pending or []
    if backend.record(record, [*pending, make_event(n=3)], durable=True) is not True:
        return "the next save did not reach the journal"
    numbers = [event["n"] for event in backend.events().events]
    backend.close()
    if numbers not in ([1, 3], [1, 2, 3]):
        return f"events {numbers} after {said}"
    return None


def sweep_faults(
    tmp_path, calls, argument, faults, *, mode="once", problem_of=problem_of, before=None
):
    """Inject each fault at each call; return the problems by fault and call.

    With a directory ``before`` each begins with a copy of it.
    """
    number = itertools.count()

    def one(case):
        fault, (name, nth) = case
        path = tmp_path / f"{next(number)}"
        path.mkdir()
        if before is not None:
            shutil.copytree(before, path / "state")
        what = "signal=KILL" if fault == "KILL" else f"error={fault}"
        inject = ("-e", f"inject={name}:{what}:when={nth}")
        traces = traced(path / "state", path / "trace", argument, *inject, mode=mode)
        found = problem_of(path / "state", fault, *traces)
        return found and f"{fault} at {name} {nth}: {found}"

    with ThreadPoolExecutor(WORKERS) as pool:
        return [found for found in pool.map(one, itertools.product(faults, calls)) if found]


def test_the_update_is_what_the_design_says(update_calls):
    """One update locks, checks, writes, syncs the file, renames and syncs the directory."""
    names = [name for name, _ in update_calls["state"]]
    assert names.count("fsync") == 2
    assert names.index("flock") < names.index("write") < names.index("fsync")
    assert names.index("fsync") < names.index("rename")
    assert "fsync" in names[names.index("rename") :]
    assert "fdatasync" not in names
    assert "fdatasync" in [name for name, _ in update_calls["event"]]


@pytest.mark.parametrize(
    "fault",
    [
        *("KILL", "ENOSPC", "EIO"),
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("EMFILE", "EACCES")),
    ],
)
def test_a_fault_at_any_call_of_an_update_leaves_the_old_or_the_new_state(
    tmp_path, update_calls, fault
):
    """The state is never torn or gone, errors are typed, and only a kill leaves an orphan."""
    assert sweep_faults(tmp_path, update_calls["state"], "state", [fault]) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault",
    ["KILL", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("EIO", "ENOSPC"))],
)
def test_a_fault_at_any_call_of_a_crossing_loses_and_repeats_no_event(
    tmp_path, update_calls, fault
):
    """The same with the journal written first: each event is stored once or waits in the state."""
    assert sweep_faults(tmp_path, update_calls["event"], "event", [fault]) == []


def problem_of_life(lives, directory, fault, said, update):
    """Return what is wrong with an agent in whose start a call failed, None when nothing is."""
    if not any("(INJECTED)" in line for _, _, line in update):
        return f"{fault} was not injected into the start"
    if len(said) != 1 or any("taken over" in line for line in said[0]):
        return f"said {said}"
    backend = LocalBackend(str(directory))
    record = backend.load(AGENT).record
    stored = [*backend.events().events, *(record.pending or ())]
    backend.close()
    events = [(event["type"], event["generation"]) for event in stored]
    kinds = ("agent_started", "context_threshold_reached", "handoff_ready", "agent_stopped")
    ended = [("agent_started", 1), ("agent_stopped", 1)] if lives == 2 else []
    if events != [*ended, *((kind, lives) for kind in kinds)]:
        return f"events {events}"
    if (record.generation, record.active, record.outcome) != (lives, False, "returned"):
        return f"generation {record.generation}, outcome {record.outcome}"
    if record.handoff["completed"] != ["one"] or record.handoff["remaining"] != ["two"]:
        return f"handoff {record.handoff}"
    left = [path.name for path in Path(directory).rglob("*.corrupt-*")]
    return f"set aside {left}" if left else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("lives", "fault", "step"),
    [
        (2, "EIO", 5),
        *(
            pytest.param(lives, fault, 1, marks=pytest.mark.exhaustive)
            for lives, fault in itertools.product((1, 2), ("EIO", "ENOSPC", "EINTR", "EMFILE"))
        ),
    ],
)
def test_a_fault_at_any_call_of_a_start_does_not_silence_the_agent(tmp_path, lives, fault, step):
    """It tries again and knows its own state: one generation, and every event is there once."""
    said, update = traced(tmp_path / "state", tmp_path / "trace", lives, mode="live")
    assert said == [[]]
    calls = [(name, nth) for name, nth, _ in update]
    assert "rename" in [name for name, _ in calls]
    judge = functools.partial(problem_of_life, lives)
    tried = calls[::step]
    assert sweep_faults(tmp_path, tried, lives, [fault], mode="live", problem_of=judge) == []


def problem_of_journal(directory, fault, said, update):
    """Return what is wrong with the journal of two lives after one failed read."""
    if not any("(INJECTED)" in line for _, _, line in update):
        return f"{fault} was not injected into the start"
    backend = LocalBackend(str(directory))
    stored = [*backend.events().events, *(backend.load(AGENT).record.pending or ())]
    backend.close()
    left = [path.name for path in Path(directory).rglob("*.corrupt-*")]
    generations = [event["generation"] for event in stored]
    return None if (left, generations) == ([], [1] * 4 + [2] * 4) else f"{generations}, {left}"


@pytest.mark.timeout(300)
def test_a_read_that_fails_once_does_not_set_a_good_journal_aside(tmp_path):
    """SQLite calls a page that could not be read damage; the next look finds none."""
    first = tmp_path / "first"
    assert finish(run_writer(first, "live", 1)) == ["ready", []]
    shutil.copytree(first, tmp_path / "state")
    _, update = traced(tmp_path / "state", tmp_path / "trace", 1, mode="live")
    calls = [(name, nth) for name, nth, _ in update if name == "pread64"]
    assert len(calls) > 4
    judged = {"mode": "live", "problem_of": problem_of_journal, "before": first}
    assert sweep_faults(tmp_path, calls, 1, ["EIO"], **judged) == []


PERMANENT = {
    "no data reaches the disk": "inject=fsync,fdatasync:error=EIO",
    "nothing is renamed": "inject=rename:error=ENOSPC",
    "no modes are set": "inject=fchmod:error=EACCES",
    "no directory is made": "inject=mkdir:error=EACCES",
    "no lock is had": "inject=flock:error=ENOLCK",
    "nothing is written at a place": "inject=pwrite64:error=ENOSPC",
}


@pytest.mark.parametrize("fault", PERMANENT.values(), ids=PERMANENT.keys())
def test_no_verb_hurts_the_agent_while_a_call_fails_for_good(tmp_path, fault):
    """Each verb returns, and at most one warning is logged."""
    calls = fault.split(":")[0].removeprefix("inject=")
    before = [require_tool("strace"), "-f", "-qq", "--seccomp-bpf", "-e", "signal=none"]
    before += ["-o", tmp_path / "trace", "-e", f"trace={calls}", "-e", fault]
    writer = run_writer(tmp_path / "state", "verbs", "log", before=before, env=IMPATIENT)
    (said,) = finish(writer)
    assert writer.returncode == 0
    assert "(INJECTED)" in (tmp_path / "trace").read_text()
    assert said["raised"] == {}
    assert said["level"] == "force_return"
    (line,) = said["log"]
    if "pwrite64" in fault:
        # Of the journal alone, where a step has no other place; other events wait in the state.
        assert "step_completed is not stored" in line
