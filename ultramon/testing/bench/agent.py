"""An agent of the bench: one context, a process of its own, which misbehaves by the seed.

It does every item that its prompt names, whether it is done already or not: what is done is for
its orchestrator to know. Started by ``Fleet.supervise`` or a relay, it takes its items from there
and reports its window to ultramon, as a program that uses the SDK does. Nothing else differs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from ultramon.testing.bench.faults import (
    CONFLICT,
    DIE,
    FILL,
    IGNORE,
    LIE,
    LOOP,
    draw_attempt,
    draw_context,
    kept_in_mind,
)
from ultramon.testing.bench.history import DID, REQUEST, SAID, SPOILT, History
from ultramon.testing.bench.job import BenchJob, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.monitor.worker import Worker

WINDOW_TOKENS = 67_000
OPENING_TOKENS = 21_000
"""What the first request holds before any work: prompt of the system, tools. Both as measured for
the client in benchmarks/RESULTS.md."""
SUMMARY_TOKENS = 6_000
LOOP_TOKENS = 2_000
"""What a request of a loop adds: it fills the window after some 20 of them."""
STUB = "To be written.\n"
ALL_DONE = "ALL DONE"
SUPERVISED = "ULTRAMON_SUPERVISED"
"""As in `ultramon.handoff`, which loads more than an agent without a supervisor needs."""


class LeftError(Exception):
    """The context leaves the item in hand undone."""


class FullError(Exception):
    """The window is full, and the provider refuses the request."""


class Context:
    """What one agent does, and what it notes of it.

    Args:
        job: The job.
        items: What it is to do.
        is_asked: Whether it was asked to return.
        report: Called with the tokens in its window after each request.

    Attributes:
        left: The items that it knows of and has not done.
        given_up: The items that it has begun and given up.
    """

    def __init__(
        self,
        job: BenchJob,
        items: list[str],
        *,
        is_asked: Callable[[], bool],
        report: Callable[[int], object] = lambda tokens: None,
    ) -> None:
        self.left = list(items)
        self.given_up: list[str] = []
        self._job = job
        self._history = History(job.history_path)
        self._faults = draw_context(job.seed, self._history.start(items), job.faults)
        self._asks = is_asked
        self._report = report
        self._tokens = 0
        self._has_ignored = False

    @property
    def ignores(self) -> bool:
        """Whether it ignores a request to return."""
        return self._faults.ignores

    @property
    def is_asked(self) -> bool:
        """Whether it was asked to return, and does."""
        if not self._asks():
            return False
        if self.ignores and not self._has_ignored:
            self._has_ignored = True
            self._history.note(IGNORE)
        return not self.ignores

    def work(self, item: str) -> bool:
        """Work on an item; return whether it is said to be done.

        Raises:
            LeftError: It was asked to return, in a loop.
            FullError: The window is full, and that ends it.
        """
        job, number = self._job, self._history.begin(item)
        attempt = draw_attempt(job.seed, item, number, job.faults, job.fault_ratio)
        reading, *rest = attempt.tokens
        self._request(reading)
        if attempt.fault == LOOP:
            self._loop(item)
            return False
        if attempt.fault == LIE:
            if attempt.is_late:
                self._write(item, f"{item}\n{STUB}")
            self._history.note(LIE, item=item)
            return self._claim(item)
        if attempt.fault == DIE and not attempt.is_late:
            self._write(item, job.text_of(item)[:-8])
            self._die(item)
        self._request(rest[0])
        self._write(item, job.text_of(item))
        changed = self._write_shared(item, overwrites=attempt.overwrites)
        self._history.note(DID, item=item)
        _commit(item, [f"out/{item}", *changed])
        self._request(rest[1])
        if attempt.fault == DIE:
            self._die(item)
        return self._claim(item)

    def say_end(self) -> None:
        """Print the last line: what it believes to be left, or that nothing is."""
        left = [*self.given_up, *self.left]
        say(f"LEFT {' '.join(left)}" if left else ALL_DONE)

    def _claim(self, item: str) -> bool:
        self._history.note(SAID, item=item)
        say(f"DONE {item}")
        say(f"TOKENS {self._tokens} {WINDOW_TOKENS}")
        return True

    def _loop(self, item: str) -> None:
        self._history.note(LOOP, item=item)
        # A compaction ends it: what it was about is forgotten. The bound is for a window that
        # is never full.
        for _ in range(WINDOW_TOKENS // LOOP_TOKENS):
            if self.is_asked:
                raise LeftError
            if self._request(LOOP_TOKENS):
                return

    def _request(self, added: int) -> bool:
        """Make a request to the model; return whether the window was compacted for it."""
        is_first = not self._tokens
        added += OPENING_TOKENS if is_first else 0
        is_compacted = not is_first and self._tokens + added > WINDOW_TOKENS
        if is_compacted:
            self._fill()
        self._tokens += added
        self._spend(self._tokens, added)
        return is_compacted

    def _spend(self, tokens: int, uncached: int) -> None:
        self._history.note(REQUEST, tokens=tokens, uncached=uncached)
        self._report(tokens)
        time.sleep(self._job.request_seconds)

    def _fill(self) -> None:
        if self._faults.fails_when_full:
            self._history.note(FILL, how="failed")
            raise FullError
        self._spend(self._tokens, SUMMARY_TOKENS)
        self._tokens = OPENING_TOKENS + SUMMARY_TOKENS
        if self._faults.forgets and self.left:
            kept = kept_in_mind(self._job.seed, self._history.context, self.left)
            forgotten = [item for item in self.left if item not in kept]
            self._history.note(FILL, how="forgot", items=forgotten)
            self.left = kept

    def _write(self, item: str, text: str) -> None:
        os.makedirs("out", exist_ok=True)
        with open(f"out/{item}", "w", encoding="utf-8") as file:
            file.write(text)

    def _write_shared(self, item: str, *, overwrites: bool) -> list[str]:
        """Write the line of an item into the file that it shares; return what was changed."""
        name = self._job.shared_file(item)
        if name is None:
            return []
        own, found = self._job.line_of(item), lines_of(name)
        others = [line for line in found[1:] if line != own]
        dropped = [line.partition(" ")[0] for line in others] if overwrites else []
        if dropped:
            self._history.note(CONFLICT, item=item)
            self._history.note(SPOILT, items=dropped)
        elif own in found:
            return []
        lines = [*found[:1], *([] if overwrites else others), own]
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        return [name]

    def _die(self, item: str) -> NoReturn:
        self._history.note(DIE, item=item)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError  # no process gets here


def say(line: str) -> None:
    """Print a line at once; an orchestrator that does not read it any more is no matter."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def work_by_prompt(context: Context) -> None:
    """Work through the items of a prompt, in its order.

    Raises:
        FullError: The window is full, and that ends the context.
    """
    while context.left and not context.is_asked:
        item = context.left.pop(0)
        try:
            is_said = context.work(item)
        except LeftError:
            is_said = False
        if not is_said:
            context.given_up.append(item)


def work_supervised(job: BenchJob, is_asked: Callable[[], bool]) -> None:
    """Work through the items that a supervisor has assigned, as any program with the SDK does.

    Raises:
        FullError: The window is full, and that ends the context.
    """
    from ultramon import ContextConfig, worker

    with worker(ContextConfig(context_limit_tokens=WINDOW_TOKENS)) as agent:
        context = Context(
            job,
            agent.monitor.pending(),
            is_asked=lambda: is_asked() or agent.should_hand_over,
            report=lambda tokens: agent.report_usage(input_tokens=tokens),
        )
        with suppress(LeftError):
            if context.ignores:
                _ignore(agent, context)
            else:
                _obey(agent, context)
        agent.notes = f"{len(agent.monitor.pending())} items are left"


def _obey(agent: Worker, context: Context) -> None:
    for item in agent.pending():
        if context.is_asked or not context.work(item):
            break  # which leaves the item interrupted
        context.left = agent.monitor.pending()


def _ignore(agent: Worker, context: Context) -> None:
    """Work as `Worker.pending` does, and past each level at which it would end."""
    while context.left:
        item = context.left.pop(0)
        _ = context.is_asked  # noted, and no more
        with agent.monitor.task(item):
            agent.monitor.update_heartbeat()
            if not context.work(item):
                raise LeftError
        agent.monitor.update_heartbeat(patiently=True)


def _commit(item: str, paths: list[str]) -> None:
    """Commit the work of an item; where git refuses, it stays uncommitted."""
    for words in (("add", "--"), ("commit", "-q", "-m", f"Do {item}", "--")):
        given: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["git", *words, *paths], check=False, **given)


def main(words: list[str]) -> int:
    """Run one context; return its exit code: 0 = it ended its turn, 1 = it failed, 2 = no items.

    Args:
        words: The folder of the job, and maybe the prompt; without one it is read from stdin.
    """
    job = BenchJob.load(words[0])
    asked = SimpleNamespace(is_asked=False)
    signal.signal(signal.SIGTERM, lambda *_: setattr(asked, "is_asked", True))
    try:
        if not words[1:] and os.environ.get(SUPERVISED):
            work_supervised(job, lambda: asked.is_asked)
            return 0
        items = job.named_in(" ".join(words[1:]) or sys.stdin.read())
        if not items:
            sys.stderr.write("the prompt names no item of this job\n")
            return 2
        context = Context(job, items, is_asked=lambda: asked.is_asked)
        work_by_prompt(context)
    except FullError:
        sys.stderr.write(f"prompt is too long: more than {WINDOW_TOKENS} tokens\n")
        return 1
    context.say_end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
