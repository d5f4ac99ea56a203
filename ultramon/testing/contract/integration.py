"""The conformance suite of adapters for agent frameworks: what docs/frameworks.md says of each.

    class TestMyAdapter(IntegrationContract):
        @pytest.fixture
        def drive(self):
            return drive

where ``drive(run)`` runs an agent of the framework to its end in ``run.mode``, watched by the
adapter with ``run.adapter_choices()``. Its model asks ``run.outer.next_turn(request)`` what to
answer, and its tool is ``run.outer.look``. `docs/extending.md` leads to a whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ultramon.errors import ConfigurationError
from ultramon.testing.framework_run import MODES, NOTE, TURNS, FrameworkRun

if TYPE_CHECKING:
    from collections.abc import Callable

    Drive = Callable[[FrameworkRun], None]

in_every_mode = pytest.mark.parametrize("mode", MODES)


class IntegrationContract:
    """Inherit in a test class and give the fixture `drive`.

    A mode that the framework does not have, `drive` skips with the reason. An adapter that cannot
    add to a request, or cannot end a run, refuses the choice with a `ConfigurationError`.
    """

    @in_every_mode
    def test_the_numbers_are_those_that_the_model_served(self, drive: Drive, mode: str) -> None:
        """A reading inside each tool call, and the last one, is what the response said."""
        run = FrameworkRun(mode)
        drive(run)
        said = [(tokens, "reported") for tokens, _output_tokens in TURNS]
        for script in run.scripts():
            assert script.readings == said[:-1]
            assert script.served == len(TURNS)
            assert NOTE not in str(script.requests)
        states = run.states()
        assert len(states) == len(run.scripts())
        for state in states:
            assert (state.estimated_tokens, state.outcome) == (said[-1][0], "completed")
            assert state.threshold_status == "critical"
        parents = [state.parent_id for state in states if state.parent_id is not None]
        assert len(parents) == len(states) - 1
        assert {*parents} <= {state.agent_id for state in states}

    @in_every_mode
    def test_an_agent_is_notified_before_its_next_call_and_only_there(
        self, drive: Drive, mode: str
    ) -> None:
        """With tell=True the facts are in the request after each level, and in no history."""
        run = FrameworkRun(mode, choices={"tell": True})
        drive_or_skip(drive, run)
        for script in run.scripts():
            assert [NOTE in request for request in script.requests] == [False, False, True, True]
            # An adapter may count the reply in already, so only the beginning is sure.
            assert "72,0" in script.requests[2]
            assert "88,0" in script.requests[3]
        assert NOTE not in run.history

    @in_every_mode
    def test_a_run_ends_at_the_rung_with_a_handoff(self, drive: Drive, mode: str) -> None:
        """With on_return="stop" no request follows the critical reading; the plan is handed off."""
        run = FrameworkRun(mode, choices={"on_return": "stop"})
        drive_or_skip(drive, run)
        assert [script.served for script in run.scripts()] == [3] * len(run.scripts())
        assert len(run.states()) == len(run.scripts())
        for state in run.states():
            assert state.outcome == "returned"
            assert state.handoff is not None
            assert state.handoff["reason"] == "threshold_critical"
            assert state.handoff["completed"] == ["first"]
            assert state.handoff["remaining"] == ["second"]
        handoffs = [state.handoff for state in run.states()]
        assert run.handoff_id in [handoff["handoffId"] for handoff in handoffs if handoff]

    @in_every_mode
    def test_a_disabled_adapter_changes_nothing(
        self, drive: Drive, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With ULTRAMON_DISABLED nothing is stored, no notice is sent, no run ends early."""
        monkeypatch.setenv("ULTRAMON_DISABLED", "1")
        run = FrameworkRun(mode, choices={"tell": True, "on_return": "stop"})
        drive_or_skip(drive, run)
        assert run.outer.served == len(TURNS)
        assert run.outer.readings == []
        assert NOTE not in str(run.outer.requests)
        assert run.states() == []
        assert run.handoff_id is None


def drive_or_skip(drive: Drive, run: FrameworkRun) -> None:
    """Drive a run; skip where the adapter says that it has none of its choices."""
    try:
        drive(run)
    except ConfigurationError as error:
        if error.name not in run.choices:
            raise
        pytest.skip(str(error))
