"""Every adapter, in every mode, on a model of its framework's own kind."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from helpers.frameworks import MODES, NOTE, TURNS, Run

import ultramon.integrations
from ultramon import MissingExtraError

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = sorted(
    path.stem
    for path in Path(ultramon.integrations.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "adapter")
)

in_every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(params=FRAMEWORKS)
def drive(request):
    """Drive one framework; an adapter without a driver of all modes fails here."""
    return import_module(f"helpers.frameworks.{request.param}").drive


@in_every_mode
def test_the_numbers_are_those_that_the_model_served(drive, mode):
    """A reading inside each tool call, and the last one, is what the response said."""
    run = Run(mode)
    drive(run)
    said = [(tokens, "reported") for tokens, _output_tokens in TURNS]
    scripts = [run.outer, run.inner] if mode == "nested" else [run.outer]
    for script in scripts:
        assert script.readings == said[:-1]
        assert script.served == len(TURNS)
        assert NOTE not in str(script.requests)
    states = run.states()
    assert len(states) == len(scripts)
    for state in states:
        assert (state.estimated_tokens, state.outcome) == (said[-1][0], "completed")
        assert state.threshold_status == "critical"
    parents = [state.parent_id for state in states if state.parent_id is not None]
    assert len(parents) == len(scripts) - 1
    assert {*parents} <= {state.agent_id for state in states}


@in_every_mode
def test_an_agent_is_notified_before_its_next_call_and_only_there(drive, mode):
    """With tell=True the facts are in the request after each level, and in no history."""
    run = Run(mode, choices={"tell": True})
    drive(run)
    for script in [run.outer, run.inner] if mode == "nested" else [run.outer]:
        told = [NOTE in request for request in script.requests]
        assert told == [False, False, True, True]
        assert "72,0" in script.requests[2]
        assert "88,0" in script.requests[3]
    assert NOTE not in run.history


@in_every_mode
def test_a_run_ends_at_the_rung_with_a_handoff(drive, mode):
    """With on_return="stop" no request follows the critical reading, and the plan goes on."""
    run = Run(mode, choices={"on_return": "stop"})
    drive(run)
    scripts = [run.outer, run.inner] if mode == "nested" else [run.outer]
    assert [script.served for script in scripts] == [3] * len(scripts)
    assert len(run.states()) == len(scripts)
    for state in run.states():
        assert state.outcome == "returned"
        assert state.handoff is not None
        assert state.handoff["reason"] == "threshold_critical"
        assert state.handoff["completed"] == ["first"]
        assert state.handoff["remaining"] == ["second"]
    assert run.handoff_id in [state.handoff["handoffId"] for state in run.states()]


@in_every_mode
def test_a_disabled_adapter_changes_nothing(drive, mode, monkeypatch):
    """With ULTRAMON_DISABLED nothing is stored, told or ended."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    run = Run(mode, choices={"tell": True, "on_return": "stop"})
    drive(run)
    assert run.outer.served == len(TURNS)
    assert run.outer.readings == []
    assert NOTE not in str(run.outer.requests)
    assert run.states() == []
    assert run.handoff_id is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_that_is_not_installed_names_the_extra(framework, monkeypatch):
    """The error says what to install, and the extra exists."""
    package = import_module(f"helpers.frameworks.{framework}").PACKAGE
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ultramon.integrations.{framework}")
    with pytest.raises(MissingExtraError) as caught:
        import_module(f"ultramon.integrations.{framework}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = project["optional-dependencies"][caught.value.extra]
    assert wanted.partition(">=")[0].removesuffix("-slim") == caught.value.package
