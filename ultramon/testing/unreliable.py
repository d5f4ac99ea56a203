"""Agents that misbehave by a seed, in place of the processes of a supervised run."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.backend import DirectoryBackend
from ultramon.backends.memory import _MemoryDirectory
from ultramon.context.config import ContextConfig
from ultramon.handoff import Workspace
from ultramon.monitor.monitor import create_context_monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ultramon.backends.memory import MemoryBackend
    from ultramon.fleet.supervise.jobs import Job
    from ultramon.monitor.background import BackgroundSaver
    from ultramon.monitor.monitor import ContextMonitor
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

FAULTS = (
    "no_spawn",  # `spawn` raises
    "late",  # starts late
    "die",  # is killed: before its start, between journal and state, in an item, in hand_off
    "claim",  # claims items without doing them
    "deaf",  # ignores the hand-over and force_return
    "loop",  # works on one item until it is killed or asked to return
    "suspend",  # neither works nor beats for a while
    "no_notes",  # hands off with empty notes, others with new ones
    "same_notes",  # hands off with the notes that it was given
    "no_handoff",  # stops without a handoff
    "no_stop",  # its process ends without stop
    "linger",  # its process outlives its agent
    "stubborn",  # ignores SIGTERM
)
"""What an `UnreliableAgent` may do."""

SIMULATED_CONFIG = ContextConfig(context_limit_tokens=10_000, lost_after_seconds=60.0)
# Twelve of them fill the window of `SIMULATED_CONFIG`: an agent of a few items has to hand over.
_TOKENS_PER_STEP = 800
_LONGEST_LOOP_STEPS = 60
_STARTED_LATE_BY_STEPS = 40
_SUSPENDED_STEPS = 60
_LINGERS_STEPS = 60


class UnreliableAgent:
    """A process of `Fleet.supervise` that is none: it works, and misbehaves, step by step.

    It has what the supervisor asks of a process, uses a real monitor on a store in memory, and
    does the same for the same seed, agent id and times. Killed, it stores nothing more: also in
    the middle of a save, between journal and state.

    Args:
        seed: Decides which faults it has, and when.
        job: Its work.
        backend: The store of the run.
        clock: That of the run; its caller moves it.
        do: Does an item; whatever it raises ends the process with exit code 1. None = nothing.
        faults: Which of `FAULTS` it may have.
        fault_ratio: How probable each of them is, 0.0 to 1.0.
        config: Limits and intervals; None = a window of 10,000 tokens, lost after 60 s of silence.

    Attributes:
        pid: That of this process.
        returncode: As of a `subprocess.Popen`; None while it runs.
        error: What ended it, e.g. a `HandoffTakenError`; None = nothing was raised.
        faults: Which faults it has.
        done: The items that it has really done, in order.
    """

    def __init__(
        self,
        seed: object,
        job: Job,
        *,
        backend: MemoryBackend,
        clock: Clock,
        do: Callable[[str], object] | None = None,
        faults: Collection[str] = FAULTS,
        fault_ratio: float = 0.15,
        config: ContextConfig | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.error: Exception | None = None
        self.done: list[str] = []
        self._job = job
        self._do = do
        self._chance = chance = Random(f"{seed} {job.agent_id}")
        # The draw comes before the filter: without one fault the others stay the same.
        self.faults = {name for name in FAULTS if chance.random() < fault_ratio and name in faults}
        # On a log scale: the few early moments, at which a kill leaves something else behind, are
        # drawn as often as the many late ones.
        self._moments_left = int(2 ** chance.uniform(0, 6)) if "die" in self.faults else None
        self._clock = _OwnClock(clock)
        self._backend = _MortalBackend(backend, self._pass)
        self._config = config or SIMULATED_CONFIG
        self._suspended_steps = 0
        self._tokens = 0
        self._steps = self._live()

    @property
    def left(self) -> list[str]:
        """The items of its job that it has not done."""
        return [item for item in self._job.items if item not in self.done]

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def terminate(self) -> None:
        """End it, unless it ignores SIGTERM."""
        if "stubborn" not in self.faults:
            self._end(-15)

    def kill(self) -> None:
        """End it."""
        self._end(-9)

    def act(self) -> None:
        """Do one step, and what is to be saved and beaten by now; nothing once it has ended."""
        if self.returncode is not None:
            return
        if self._suspended_steps:
            self._suspended_steps -= 1
            return
        try:
            self._clock.run_due()
            next(self._steps)
            self._pass()
        except StopIteration:
            self._end(0)
        except _KilledError:
            self._end(-9)
        except Exception as error:  # noqa: BLE001 - as an interpreter does
            self.error = error
            self._end(1)

    def _end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code

    def _pass(self) -> None:
        """Pass a moment at which it may be killed; nothing is stored after the end."""
        if self._moments_left is not None:
            self._moments_left -= 1
        if self.returncode is not None or self._moments_left == 0:
            raise _KilledError

    def _live(self) -> Iterator[None]:
        if "late" in self.faults:
            for _ in range(self._chance.randrange(_STARTED_LATE_BY_STEPS)):
                yield
        job = self._job
        monitor = create_context_monitor(
            job.agent_id,
            self._config,
            run=job.env["ULTRAMON_RUN"],
            continues=job.handoff,
            backend=self._backend,
            clock=self._clock,
        )
        if job.handoff is None:
            monitor.plan(job.items)
        monitor.start()
        for item in monitor.pending():
            yield
            if self._obeys(monitor):
                break
            try:
                yield from self._work(monitor, item)
            except _LeftError:
                break
        yield from self._leave(monitor)

    def _work(self, monitor: ContextMonitor, item: str) -> Iterator[None]:
        """Work on one item, as a `Worker` does: stored in the beginning, and when it is done."""
        with monitor.task(item):
            monitor.update_heartbeat()
            steps = self._chance.randrange(1, 6)
            loops = "loop" in self.faults and self._chance.random() < 0.3
            for _ in range(_LONGEST_LOOP_STEPS if loops else steps):
                self._tokens += _TOKENS_PER_STEP
                monitor.report_usage(input_tokens=self._tokens)
                if "suspend" in self.faults and self._chance.random() < 0.1:
                    self._suspended_steps = self._chance.randrange(_SUSPENDED_STEPS)
                yield
                if self._obeys(monitor) and (loops or self._chance.random() < 0.2):
                    raise _LeftError
            # A loop has no end of its own: where no hand-over ended it, a kill does.
            if loops:
                raise _KilledError
            if not ("claim" in self.faults and self._chance.random() < 0.5):
                if self._do is not None:
                    self._do(item)
                self.done.append(item)
        monitor.update_heartbeat()

    def _obeys(self, monitor: ContextMonitor) -> bool:
        """Return whether it should hand over, and does."""
        action = monitor.get_threshold_action()
        return "deaf" not in self.faults and (action.should_return or action.should_prepare)

    def _leave(self, monitor: ContextMonitor) -> Iterator[None]:
        before = self._job.handoff
        outcome = "completed"
        if monitor.pending() and "no_handoff" not in self.faults:
            notes = f"{self._job.agent_id} has done {len(self.done)}"
            if "no_notes" in self.faults:
                notes = ""
            elif "same_notes" in self.faults:
                notes = before.notes or "" if before is not None else "the same"
            # Given, so that no git is run for it.
            monitor.hand_off(notes=notes, workspace=Workspace(cwd="/"))
            outcome = "returned"
            yield
        if "no_stop" in self.faults:
            return
        monitor.stop(outcome)
        if "linger" in self.faults:
            for _ in range(self._chance.randrange(_LINGERS_STEPS)):
                yield


class UnreliableAgents:
    """A `spawn` for `Fleet.supervise` that starts an `UnreliableAgent` for each job.

    Nothing moves by itself: call `act` between two looks of the orchestrator, and move the clock.

    Args:
        seed: Decides all of it.
        backend: The store of the run.
        clock: That of the run.
        do: As for `UnreliableAgent`.
        faults: As for `UnreliableAgent`.
        fault_ratio: As for `UnreliableAgent`.
        config: As for `UnreliableAgent`.

    Attributes:
        started: The agents, in the order of their start.
        really_done: (agent id, item) of all that was done, in order.
        held_twice: (agent id, item) of all that was given to an agent while the process of another
            one ran that had the item and had not done it.
    """

    def __init__(
        self,
        seed: object,
        *,
        backend: MemoryBackend,
        clock: Clock,
        do: Callable[[str], object] | None = None,
        faults: Collection[str] = FAULTS,
        fault_ratio: float = 0.15,
        config: ContextConfig | None = None,
    ) -> None:
        unknown = set(faults) - set(FAULTS)
        if unknown:
            raise ValueError(f"no fault {min(unknown)!r}: choose of {', '.join(FAULTS)}")
        self.started: list[UnreliableAgent] = []
        self.really_done: list[tuple[str, str]] = []
        self.held_twice: list[tuple[str, str]] = []
        self._seed = seed
        self._do = do
        self._given: dict[str, Any] = {
            "backend": backend,
            "clock": clock,
            "faults": faults,
            "fault_ratio": fault_ratio,
            "config": config,
        }
        self._chance = Random(f"{seed} order")

    def __call__(self, job: Job) -> UnreliableAgent:
        """Start the agent of a job.

        Raises:
            OSError: The seed wants it.
        """

        def do(item: str) -> None:
            if self._do is not None:
                self._do(item)
            self.really_done.append((job.agent_id, item))

        agent = UnreliableAgent(self._seed, job, do=do, **self._given)
        if "no_spawn" in agent.faults:
            raise OSError("the seed lets no process start")
        # Noted here, as no supervisor would say of itself that it assigned an item twice.
        held = {item for other in self.running for item in other.left}
        self.held_twice += [(job.agent_id, item) for item in job.items if item in held]
        self.started.append(agent)
        return agent

    @property
    def running(self) -> list[UnreliableAgent]:
        """The agents whose process runs."""
        return [agent for agent in self.started if agent.returncode is None]

    def act(self) -> None:
        """Let each running agent do a step, in an order of the seed."""
        running = self.running
        self._chance.shuffle(running)
        for agent in running:
            agent.act()


class _KilledError(BaseException):
    """The process of an agent is killed here; no handler of an `Exception` may catch it."""


class _LeftError(Exception):
    """An agent leaves an item that it has begun."""


class _OwnClock:
    """The time of a run for one agent: its saves and beats end with it."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.saver: BackgroundSaver | None = None

    def run_due(self) -> None:
        if self.saver is not None:
            self.saver.run_due()


class _MortalDirectory(_MemoryDirectory):
    """The states of a store, for one agent that may be killed before and after each write."""

    __slots__ = ("_pass",)

    def __init__(self, of: _MemoryDirectory, moment: Callable[[], None]) -> None:
        super().__init__()
        # The lock and the tables of the store itself: an agent that is killed leaves what it had
        # written.
        self._lock = of._lock
        self.states, self.beats, self.requests = of.states, of.beats, of.requests
        self.histories = of.histories
        self._pass = moment

    def replace(self, record: StateRecord, *, durable: bool) -> None:
        self._pass()
        # A supervisor ends by its pid what is no child of it: that must not be this process.
        record.pid = None
        super().replace(record, durable=durable)
        self._pass()

    def beat(self, agent_id: str, at: float) -> None:
        self._pass()
        super().beat(agent_id, at)


class _MortalBackend(DirectoryBackend):
    """A store in memory as one agent sees it that may be killed."""

    def __init__(self, store: MemoryBackend, moment: Callable[[], None]) -> None:
        self.url = store.url
        super().__init__(_MortalDirectory(store.directory, moment), store._journal)
        self._pass = moment

    def claim_handoff(self, *claim: Any, **when: Any) -> str:
        self._pass()
        holder = super().claim_handoff(*claim, **when)
        self._pass()
        return holder

    def append_events(
        self, events: Sequence[dict[str, Any]], records: Sequence[StateRecord] = ()
    ) -> None:
        self._pass()
        super().append_events(events, records)

    def change_mark(self) -> object:
        return None

    def close(self) -> None:
        pass  # the store is that of the run
