"""The pytest fixtures of ultramon; pytest finds them by itself wherever ultramon is installed.

Imports nothing heavy: every fixture imports what it needs when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.backends.memory import MemoryBackend
    from ultramon.fleet.fleet import Fleet
    from ultramon.monitor.monitor import ContextMonitor
    from ultramon.state.events import Event
    from ultramon.testing.clock import FakeClock

# pytest rewrites the asserts of test files and plugins by itself, and the suites are neither.
pytest.register_assert_rewrite("ultramon.testing.contract")


@pytest.fixture
def ultramon_clock() -> FakeClock:
    """Give a clock that only the test moves."""
    from ultramon.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def ultramon_backend() -> MemoryBackend:
    """Give an empty backend in memory that no other test sees."""
    from ultramon.backends.memory import MemoryBackend

    return MemoryBackend()


@pytest.fixture
def ultramon_monitor(
    ultramon_clock: FakeClock, ultramon_backend: MemoryBackend
) -> Callable[..., ContextMonitor]:
    """Give a factory of started monitors on `ultramon_clock` and `ultramon_backend`.

    It takes what `create_context_monitor` takes, and the fields of a `ContextConfig` as keywords
    beside them. Errors of the store are raised and not only logged.
    """
    import inspect

    from ultramon.context.config import ContextConfig
    from ultramon.monitor.monitor import create_context_monitor

    own = set(inspect.signature(create_context_monitor).parameters)

    def make(
        agent_id: str | None = None, config: ContextConfig | None = None, **given: Any
    ) -> ContextMonitor:
        fields = {name: given.pop(name) for name in list(given) if name not in own}
        if config is None:
            # A test is to fail where a program would log and continue.
            config = ContextConfig(**{"on_error": "raise", **fields})
        elif fields:
            raise TypeError(f"give either a config or its fields, not both: {sorted(fields)}")
        given.setdefault("clock", ultramon_clock)
        given.setdefault("backend", ultramon_backend)
        return create_context_monitor(agent_id, config, **given).start()

    return make


@pytest.fixture
def ultramon_fleet(
    ultramon_clock: FakeClock, ultramon_backend: MemoryBackend
) -> Iterator[Callable[..., Fleet]]:
    """Give a factory of fleets on `ultramon_clock` and `ultramon_backend`, closed after the test.

    It takes what `Fleet` takes. Nothing moves the clock, so use `Fleet.poll`, not `Fleet.run`.
    """
    from ultramon.fleet.fleet import Fleet

    fleets: list[Fleet] = []

    def make(run: str | None = None, **given: Any) -> Fleet:
        given.setdefault("clock", ultramon_clock)
        given.setdefault("backend", ultramon_backend)
        fleets.append(Fleet(run, **given))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def ultramon_signals() -> Iterator[list[tuple[str, Event]]]:
    """Give the signals of this test as a growing list of (name, event)."""
    from ultramon.testing.agents import capture_signals

    with capture_signals() as seen:
        yield seen
