"""Supervised runs on a clock of their own, with agents that misbehave by a seed."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from ultramon.backends.memory import MemoryBackend
from ultramon.fleet.fleet import Fleet
from ultramon.fleet.supervise.ledger import events_of
from ultramon.testing.clock import FakeClock
from ultramon.testing.unreliable import FAULTS, UnreliableAgents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from os import PathLike

    from ultramon.fleet.supervise.result import SupervisorResult
    from ultramon.fleet.supervise.supervisor import Supervisor
    from ultramon.testing.unreliable import UnreliableAgent

_SECONDS_PER_STEP = (0.1, 0.5, 1.0, 1.0, 1.0, 2.0, 5.0, 20.0)
"""The time between two looks; the longest is past the renewal of a lease."""
_STEPS_PER_LOOK = (0, 1, 1, 1, 2, 10)
"""The steps of the agents; ten are enough to begin, do an item or two, and end unseen."""
# A seed whose run does not end is a finding, and must not hang the test.
_MOST_STEPS = 20_000
_STEPS_TO_SETTLE = 500


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came of a simulated run.

    Attributes:
        result: What `Fleet.supervise` would return; of the last call.
        events: The journal of the run up to then, oldest first.
        really_done: (agent id, item) of all that was done, in order.
        held_twice: (agent id, item) of all that an agent was given while another one's process ran
            that had it.
        agents: The agents, in the order of their start.
        steps: How many looks the supervisor took.
    """

    result: SupervisorResult
    events: list[dict[str, Any]]
    really_done: list[tuple[str, str]]
    held_twice: list[tuple[str, str]]
    agents: list[UnreliableAgent]
    steps: int


def simulate(
    seed: object,
    items: Iterable[str | PathLike[str]],
    *,
    verify: Callable[[str], object] | bool = True,
    do: Callable[[str], object] | None = None,
    calls: int = 1,
    faults: Collection[str] = FAULTS,
    fault_ratio: float = 0.15,
    run: str = "simulation",
    backend: MemoryBackend | None = None,
    clock: FakeClock | None = None,
    **options: Any,
) -> Simulation:
    """Supervise items with unreliable agents, in no time: nothing waits, and nothing is random.

    The same seed and arguments give the same run, with the same events in the same order.

    Args:
        seed: Decides faults, order, times, and how long `verify` takes.
        items: As for `Fleet.supervise`.
        verify: As for `Fleet.supervise`; True = it knows what was really done, False = nothing
            is verified.
        do: Does an item, for a `verify` that looks at what came of it.
        calls: So often `supervise` is called at most, while it stops early and leaves items.
        faults: Which of `ultramon.testing.unreliable.FAULTS` agents may have.
        fault_ratio: How probable each of them is for each agent.
        run: The name of the run.
        backend: Where it is stored; None = in a store that is gone with it.
        clock: Moved by the run; None = one of its own.
        **options: Further options of `Fleet.supervise`.

    Raises:
        AssertionError: It does not end.
    """
    backend, clock = backend or MemoryBackend(), clock or FakeClock()
    # Each purpose has a sequence of its own: one more draw for one changes no other.
    chance = Random(f"{seed} times")
    agents = UnreliableAgents(
        seed, backend=backend, clock=clock, do=do, faults=faults, fault_ratio=fault_ratio
    )
    if verify is True:
        # Agents may claim what they have not done, so only what was really done confirms.
        options["verify"] = lambda item: item in [done for _, done in agents.really_done]
    elif verify is not False:
        options["verify"] = verify
    items = list(items)  # each call is given them again
    steps = 0
    for _ in range(calls):
        slow = _Slow(chance)
        fleet = Fleet(run, backend=backend, clock=clock)
        fleet.add_items(items)
        given: Any = {**options, "executor": slow}
        # Stepped from here: `Fleet.supervise` would wait for real time between two looks.
        supervisor = fleet._supervisor(agents, None, given)

        def step(supervisor: Supervisor = supervisor, slow: _Slow = slow) -> None:
            supervisor.step()
            for _ in range(chance.choice(_STEPS_PER_LOOK)):
                agents.act()
            slow.act()
            clock.advance(chance.choice(_SECONDS_PER_STEP))

        while not supervisor.is_over:
            step()
            steps += 1
            if steps > _MOST_STEPS:
                raise AssertionError(f"seed {seed}: it does not end: {supervisor.result()}")
        result, events = supervisor.result(), list(events_of(backend, run))
        really_done = list(agents.really_done)
        # Agents here have the pid of this process, so no later call may find one that is open.
        for _ in range(_STEPS_TO_SETTLE):
            if not supervisor.pool.open_contexts:
                break
            step()
        else:
            raise AssertionError(f"seed {seed}: its contexts are not closed: {result}")
        fleet.close()
        if not result.left:
            break
    return Simulation(result, events, really_done, agents.held_twice, agents.started, steps)


class _Slow(Executor):
    """Makes calls later, in an order of the seed."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(  # type: ignore[override]
        self, function: Callable[..., Any], /, *arguments: Any
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, function, arguments))
        return future

    def act(self) -> None:
        """Make some of the calls, each with even chances."""
        # A call may submit others: they wait for the next step.
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            future, function, arguments = call
            if self._chance.random() < 0.5:
                self._waiting.append(call)
                continue
            try:
                future.set_result(function(*arguments))
            except Exception as error:  # noqa: BLE001 - the caller of result() gets it
                future.set_exception(error)
