"""A project under git, relays of it, and the programs that these run as agents.

Run as ``python relayed.py <mode>`` it is such a program. Each piece of work is a line in the file
``done`` of its working directory; ``begun`` there has a line for each item that was begun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from helpers import IMPORT_PATH

CHECK = ("--verify", "grep -Fxqe {item} done")


class RelayedProject:
    """A project of one commit, with a state directory beside it."""

    def __init__(self, directory):
        self.directory = directory
        self.path = directory / "project"
        self.path.mkdir()
        self.state = directory / "state"
        (self.path / "README").write_text("A project.\n")
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.org")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    def git(self, *arguments):
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def tree(self, run="job"):
        return self.state / "relay" / run / "worktree"

    def lines(self, name="done", run="job"):
        path = self.tree(run) / name
        return path.read_text().splitlines() if path.exists() else []

    def workers_environ(self, **more):
        """What agents of mode ``commits`` need beside the rest: where each notes its worker."""
        return {"WORKERS": str(self.directory / "workers"), **more}

    def items(self, *names):
        path = self.directory / "items"
        path.write_text("".join(f"{name}\n" for name in names))
        return ("--items", str(path))

    def start(self, mode, *arguments, run="job", stdin=subprocess.DEVNULL, **environ):
        """Start a relay as a program, its agents in a mode; no mode = those of before."""
        from helpers.program import PROGRAM, environment

        program = [sys.executable, "-B", __file__] if "DIE_AT" in environ else [PROGRAM]
        chosen = () if mode is None else ("--", sys.executable, "-B", __file__, mode)
        return subprocess.Popen(
            [*program, "relay", *arguments, "--state-dir", str(self.state), "--json", *chosen],
            cwd=self.path,
            env=environment(PYTHONPATH=IMPORT_PATH, **environ),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self, mode, *arguments, run="job", goal="Do it all.", **environ):
        """Start a new run of that name."""
        given = (goal, "--agent", "command", "--run", run, *arguments)
        return self.start(mode, *given, **environ)

    def resume(self, *arguments, run="job", mode=None, **environ):
        """Start a relay that continues."""
        return self.start(mode, "--resume", run, *arguments, **environ)


def finish(process, seconds=60):
    """Return exit code, result and stderr; the result is None where there is none."""
    output, told = process.communicate(timeout=seconds)
    return process.returncode, json.loads(output) if output else None, told


@contextmanager
def ended_at_last(process):
    """Kill a relay that a test leaves running."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def marks_of(state, run="job"):
    """Return the variables that a run's contexts have, and no relay of another test."""
    from ultramon.backends.local.backend import LocalBackend

    return {"ULTRAMON_RELAY": run, "ULTRAMON_BACKEND": LocalBackend(str(state)).url}


def end_contexts(state, run="job"):
    """Kill what a run's contexts have started, and nothing of another test; return how much."""
    from ultramon.relay.runs.context_process import end_left_over

    return end_left_over(marks_of(state, run))


# --- what runs as an agent


def note(name, item):
    with open(name, "a") as file:
        file.write(f"{item}\n")


def relay():
    """A relay that is killed at so many function calls of the package."""
    from helpers.supervised import die_at
    from ultramon.cli import main

    if at := int(os.environ.pop("DIE_AT")):
        die_at(at)
    main(sys.argv[1:])


def supervised():
    import ultramon

    return ultramon.worker(ultramon.ContextConfig(context_limit_tokens=10_000, on_error="raise"))


def obey():
    with supervised() as agent:
        for item in agent.pending():
            note("begun", item)
            agent.track_content("It was a dark and stormy night. " * 100)
            note("done", item)


def commits():
    """Writes and commits a file for each item; those named alike up to a hyphen share one."""
    with supervised() as agent:
        for item in agent.pending():
            agent.track_content("It was a dark and stormy night. " * 40)
            if seconds := os.environ.get("TAKES"):
                threading.Event().wait(float(seconds))
            path = Path("made", item.partition("-")[0])
            path.parent.mkdir(exist_ok=True)
            note(path, item)
            run = ("git", "-c", "user.name=Bot", "-c", "user.email=bot@example.org")
            subprocess.run([*run, "add", "made"], check=True)
            subprocess.run([*run, "commit", "-qm", f"Do {item}", "--", "made"], check=True)
            with open(os.environ["WORKERS"], "a") as file:
                file.write(f"{os.environ['ULTRAMON_WORKER']} {item}\n")


def in_commits():
    """Does each item in three commits; that of ``DIES_IN`` is killed once, behind the second one.

    ``WORKERS`` has a line for what each context finds at the beginning of an item, and for each
    commit.
    """
    own = ("git", "-c", "user.name=Bot", "-c", "user.email=bot@example.org")
    with supervised() as agent:
        for item in agent.pending():
            path, half = Path("made", item), Path("made", "half")
            path.parent.mkdir(exist_ok=True)
            lines = path.read_text().splitlines() if path.exists() else []
            last = subprocess.check_output((*own, "log", "-1", "--format=%an %s"), text=True)
            note(os.environ["WORKERS"], f"{item}: behind {last.strip()}, half: {half.exists()}")
            half.unlink(missing_ok=True)
            for step in ("read", "write", item)[len(lines) :]:
                note(path, step)
                subprocess.run((*own, "add", "made"), check=True)
                subprocess.run((*own, "commit", "-qm", f"Do {item}: {step}"), check=True)
                note(os.environ["WORKERS"], f"{item}: {step}")
                agent.step(step, len(step))
                if (step, item) == ("write", os.environ.get("DIES_IN")) and not lines:
                    note(half, "uncommitted")
                    os.kill(os.getpid(), signal.SIGKILL)


def alone():
    """Obeys, and notes where another context was in the worktree already."""
    import fcntl

    with open("alone.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("together", os.getpid())
        obey()


def numbered():
    """Obeys, and notes which worker it is."""
    note("workers", f"context {os.environ['ULTRAMON_WORKER']}")
    obey()


def claims():
    with supervised() as agent:
        for _item in agent.pending():
            pass


def careless():
    """Claims items without doing them, but does what is left alone."""
    with supervised() as agent:
        items = agent.monitor.pending()
        for item in agent.pending():
            if len(items) == 1 or "poor" not in item:
                note("done", item)


def waits():
    """Does its first item, then works on the second until it is asked to hand over."""
    with supervised() as agent:
        for number, item in enumerate(agent.pending()):
            note("begun", item)
            while number and not agent.should_hand_over:
                os.sched_yield()
            if number:
                break
            note("done", item)


def gated():
    """Does its items, each when the test lets it."""
    with supervised() as agent:
        for item in agent.pending():
            note("begun", item)
            Path(os.environ["GATE"]).read_text()
            note("done", item)


def forgetful():
    """Leaves a process in the background."""
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    child = subprocess.Popen(command, start_new_session=True)
    note("left", child.pid)
    gated() if "GATE" in os.environ else obey()


def notes():
    """Does one item, hands over with a note about it, and writes down which note it was given."""
    with supervised() as agent:
        given = "-" if agent.handoff is None else agent.handoff.notes
        for item in agent.pending():
            note("begun", f"{item}: {given}")
            note("done", item)
            agent.notes = f"what {item} taught"
            agent.report_usage(input_tokens=9_000)


def fails():
    sys.stderr.write("no such model\n")
    sys.exit(3)


def deaf():
    """Should hand over in its second item, and never ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with supervised() as agent:
        for number, item in enumerate(agent.pending()):
            if number:
                agent.report_usage(input_tokens=9_000)
                while True:
                    signal.pause()
            note("done", item)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
