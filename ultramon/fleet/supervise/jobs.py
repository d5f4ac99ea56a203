"""What a supervised context is given: a job, and the names of contexts and events."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ultramon.context.estimator import estimate_tokens
from ultramon.errors import ConfigurationError
from ultramon.handoff import DEFAULT_PROMPT_TOKENS, SUPERVISED, HandoffRecord
from ultramon.state.plan import MAX_PLAN_BYTES, item_bytes, name_of
from ultramon.state.record import StateRecord
from ultramon.system.ids import MAX_ID_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from ultramon.fleet.supervise.job_process import JobProcess
    from ultramon.fleet.supervise.pool import WorkerContext

POOL = "pool"
_SUFFIX_LENGTH = 12
_PIECE_ITEMS = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one context, for the code that starts it. Can be pickled.

    Attributes:
        agent_id: The agent of the context.
        items: What it is to do; half-done items come first.
        handoff: What the context before it left; None for the first.
        env: The environment for its process. `ultramon.worker` finds the work with it.
        steps: Results of the steps that contexts before it have done, by item and name of the step;
            only items that have any.
    """

    agent_id: str
    items: tuple[str, ...]
    handoff: HandoffRecord | None
    env: dict[str, str]
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def popen(self, args: Sequence[str] | str, **options: Any) -> JobProcess:
        """Start a program with the environment of this job, in a process group of its own.

        Its stderr goes where that of this process does, through a file: it is no terminal. The
        result shows the last 20 lines of a worker that ends early again and again.

        Args:
            args: As for `subprocess.Popen`.
            **options: Others of it; ``env`` and ``start_new_session`` have the defaults said above.

        Raises:
            OSError: The program cannot be started.
        """
        from ultramon.fleet.supervise.job_process import JobProcess

        return JobProcess(args, **{"env": self.env, "start_new_session": True, **options})

    @property
    def prompt(self) -> str:
        """The work in words, at most 1,500 tokens, for the first message to a model."""
        if self.handoff is not None:
            return self.handoff.to_prompt()
        shown = len(self.items)
        while True:
            lines = [f"# Work ({len(self.items)} items)", ""]
            lines += [f"- {' '.join(name.splitlines())}" for name in self.items[:shown]]
            if shown < len(self.items):
                lines.append(f"- … and {len(self.items) - shown} more")
            text = "\n".join([*lines, ""]).encode("utf-8", "replace").decode()
            if not shown or estimate_tokens(text) <= DEFAULT_PROMPT_TOKENS:
                return text
            shown //= 2


def marks_of(context: WorkerContext) -> dict[str, str]:
    """Return the variables that only processes of one context have.

    The journal holds them before the start: they are known however soon its orchestrator is killed.
    """
    return {"ULTRAMON_AGENT_ID": context.agent_id, SUPERVISED: context.supervisor}


def name_in_run(run: str, part: object) -> str:
    """Return the agent id of a context, or of the pool; a long run is shortened in it."""
    # With a digest, so that long runs with one beginning stay different.
    if len(run) + _SUFFIX_LENGTH > MAX_ID_LENGTH:
        digest = blake2b(run.encode(), digest_size=8).hexdigest()
        run = f"{run[: MAX_ID_LENGTH - _SUFFIX_LENGTH - len(digest) - 1]}-{digest}"
    return f"{run}.{part}"


def make_event(
    run: str, agent_id: str, kind: str, *, source: str, at: float, **details: Any
) -> dict[str, Any]:
    """Make an event of a supervised run; one with the same facts is the same event.

    Args:
        run: The run.
        agent_id: The context, or the pool.
        kind: Its type.
        source: The one that noticed it.
        at: Epoch seconds.
        **details: The facts.
    """
    facts = json.dumps(details, sort_keys=True).encode()
    number = int.from_bytes(blake2b(facts, digest_size=6).digest())
    unknown = StateRecord(agent_id, run=run, epoch=1)
    return unknown.event(kind, source=source, at=at, n=number, **details)


def added(
    run: str, pool: str, items: Iterable[object], *, source: str, at: float
) -> Iterator[dict[str, Any]]:
    """Yield the events that add items to a pool, each of them small enough for every store.

    Raises:
        ConfigurationError: As `Plan.add`; then nothing was yielded.
    """
    if isinstance(items, str | bytes):
        raise ConfigurationError("items", items, "a list of items, not one text")
    names = list(dict.fromkeys(map(name_of, items)))
    for name in names:
        if item_bytes(name) > MAX_PLAN_BYTES:
            allowed = f"at most {MAX_PLAN_BYTES} bytes as a plan stores it"
            raise ConfigurationError("item", f"{name[:40]}…", allowed)
    piece: list[str] = []
    size = 0
    for name in names:
        size += item_bytes(name)
        if piece and (len(piece) >= _PIECE_ITEMS or size > MAX_PLAN_BYTES):
            yield make_event(run, pool, "items_added", source=source, at=at, items=piece)
            piece, size = [], item_bytes(name)
        piece.append(name)
    if piece:
        yield make_event(run, pool, "items_added", source=source, at=at, items=piece)


def refuse_import_of_main() -> None:
    """Raise in a new process of multiprocessing that imports the main module, and calls anew.

    It would stand by for its own orchestrator, which waits for it.

    Raises:
        RuntimeError: The main module has no guard.
    """
    # multiprocessing refuses by this attribute too; there is no public one.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "supervise was called anew by a process that it started, which imports the main"
            ' module: put the call below `if __name__ == "__main__":`'
        )


def process_for(target: Callable[[Job], object]) -> Callable[[Job], BaseProcess]:
    """Return a function that runs a job by a picklable callable in a process of its own."""
    context = multiprocessing.get_context("spawn")

    def spawn(job: Job) -> BaseProcess:
        process = context.Process(target=_run, args=(target, job), name=job.agent_id)
        process.start()
        return process

    return spawn


def _run(target: Callable[[Job], object], job: Job) -> None:
    # The job's environment alone, as with `Job.popen`.
    os.environ.clear()
    os.environ.update(job.env)
    target(job)
