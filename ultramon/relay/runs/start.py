"""How a context of a relay begins, continues after a pause, or is found by a later relay."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.fleet.supervise.children import process_facts
from ultramon.fleet.supervise.jobs import make_event
from ultramon.relay.runs.context_process import find_leader
from ultramon.relay.runs.context_record import ContextRecord
from ultramon.relay.runs.run_reader import number_of
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from ultramon.fleet.supervise.jobs import Job
    from ultramon.relay.runs.run import Run

_CONTINUE = "Continue where you were: the provider takes requests again."


@dataclass(frozen=True, slots=True)
class StartedContext:
    """A context that was begun, by this relay or by one before it.

    Attributes:
        run: Its run.
        record: What the folder of the run keeps of it.
        agent_id: Its agent.
        environ: The environment that the relay gave it.
    """

    run: Run
    record: ContextRecord
    agent_id: str
    environ: dict[str, str]

    @property
    def marks(self) -> dict[str, str]:
        """The variables that only processes of this context have."""
        environ = self.run.fleet.env(self.agent_id)
        names = ("ULTRAMON_AGENT_ID", "ULTRAMON_RUN", "ULTRAMON_BACKEND")
        return {"ULTRAMON_RELAY": self.run.name, **{name: environ[name] for name in names}}

    def resume(self) -> subprocess.Popen[bytes]:
        """Start the next process of its session, which has met a limit.

        Raises:
            OSError: The host cannot be started.
        """
        self.record.parts += 1
        process = self.start(_CONTINUE, resumes=True)
        with suppress(StateError):  # without it another relay would end this process
            self._note_process(process.pid)
        self.run.tell(f"context {self.record.number} continues")
        return process

    def find_process(self) -> int:
        """Return the process that another relay started; 0 when it has ended."""
        self.run.view.read()
        context = self.run.view.pool.contexts.get(self.agent_id)
        known = None if context is None else context.process
        if known is None:
            # That relay was killed between the start and the note of it.
            return find_leader(self.marks) or 0
        facts = process_facts(known["pid"])
        is_same = facts["pidStartedAt"] and facts.items() <= known.items()
        return known["pid"] if is_same else 0

    def start(self, prompt: str, *, resumes: bool = False) -> subprocess.Popen[bytes]:
        """Start its present process.

        Raises:
            OSError: The host cannot be started.
        """
        run, record = self.run, self.record
        place = run.workspace_of(record)
        command = run.launchers.of(record.agent).command(
            prompt,
            cwd=place.path,
            session_id=record.session_id,
            environ={**self.environ, **place.variables},
            resumes=resumes,
        )
        if not resumes:
            model = run.launchers.of(record.agent).known_model(self.environ)
            run.spending.reserve(self.agent_id, model)
        # Before the process: another relay that finds it knows its output.
        run.contexts.save(record)
        return command.start(run.contexts.output(record), run.contexts.errors(record))

    def _note_process(self, pid: int) -> None:
        """Let other relays find the process that continues the context."""
        name = self.run.name
        source, at = f"relay:{name}", SYSTEM_CLOCK.now()
        facts = process_facts(pid)
        event = make_event(name, self.agent_id, "context_spawned", source=source, at=at, **facts)
        self.run.backend.append_events([event])


def running_contexts(run: Run) -> Iterator[tuple[int, int]]:
    """Yield the number and the process of each context that an earlier relay has left running."""
    run.view.read()
    for agent_id, context in run.view.pool.contexts.items():
        record = run.contexts.of(agent_id)
        if context.closed is None and record is not None:
            pid = StartedContext(run, record, agent_id, {}).find_process()
            if pid:
                yield record.number, pid


def begin(
    run: Run, job: Job, prompt: str, fingerprint: str | None, worker: int
) -> tuple[StartedContext, subprocess.Popen[bytes]]:
    """Start the context of a job.

    Args:
        run: The run.
        job: From its supervisor.
        prompt: The first prompt.
        fingerprint: Of the workspace now.
        worker: Whose worktree it works in.

    Raises:
        OSError: The host cannot be started.
    """
    number = number_of(job.agent_id)
    record = ContextRecord(
        number,
        str(uuid.uuid4()),
        SYSTEM_CLOCK.now(),
        fingerprint,
        agent=run.launchers.next_name(),
        worker=worker,
    )
    context = StartedContext(run, record, job.agent_id, job.env)
    process = context.start(prompt)
    run.contexts.add(record)
    return context, process
