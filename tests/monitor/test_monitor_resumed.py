"""An agent that comes back: its window, what it was warned of, where its settings came from."""

import pytest

from ultramon import ContextConfig, create_context_monitor
from ultramon.state.record import SETTING_SOURCES, TOLD

CONFIG = ContextConfig(context_window_tokens=100_000)


def stored(backend, agent_id="a"):
    """The state of an agent in the store."""
    return backend.load(agent_id).record


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_an_agent_that_resumes_has_its_last_reading(ultramon_backend, outcome):
    """Reading, epoch and plan are those of the end; without ``resumes`` it begins anew."""
    with create_context_monitor("a", CONFIG, backend=ultramon_backend) as monitor:
        monitor.plan(["one", "two"])
        monitor.complete_task("one")
        monitor.report_usage(input_tokens=72_000)
        monitor.stop(outcome)
    for resumes, tokens, left in ((True, 72_000, ["two"]), (False, 0, [])):
        with create_context_monitor("a", CONFIG, backend=ultramon_backend, resumes=resumes) as back:
            state = back.get_state()
            assert (state.estimated_tokens, back.pending()) == (tokens, left)
            assert state.epoch == (1 if resumes else 2)


def test_what_was_handed_off_is_not_resumed(ultramon_backend):
    """Its work is a successor's, so an agent that comes back under its id begins anew."""
    with create_context_monitor("a", CONFIG, backend=ultramon_backend) as monitor:
        monitor.report_usage(input_tokens=72_000)
        monitor.hand_off()
    with create_context_monitor("a", CONFIG, backend=ultramon_backend, resumes=True) as back:
        assert (back.get_state().estimated_tokens, back.get_state().epoch) == (0, 2)


def test_what_an_agent_was_told_holds_for_its_epoch(ultramon_backend):
    """It survives the process, and a new epoch begins with nothing reported."""
    with create_context_monitor("a", CONFIG, backend=ultramon_backend) as monitor:
        monitor.report_usage(input_tokens=72_000)
        monitor.told_rank = 1
    assert stored(ultramon_backend).extra[TOLD] == {"epoch": 1, "rank": 1}
    with create_context_monitor("a", CONFIG, backend=ultramon_backend, resumes=True) as back:
        assert back.told_rank == 1
        back.record_compaction()
        assert back.told_rank == 0


def test_a_start_stores_where_its_own_settings_came_from(ultramon_backend, monkeypatch):
    """Those of an earlier start are not kept in their place, nor without them."""
    monkeypatch.setenv("ULTRAMON_GRACE_SECONDS", "40")
    seen = []
    for variable in ("ULTRAMON_GRACE_SECONDS", "ULTRAMON_HEARTBEAT_INTERVAL_SECONDS", None):
        for name in ("ULTRAMON_GRACE_SECONDS", "ULTRAMON_HEARTBEAT_INTERVAL_SECONDS"):
            monkeypatch.delenv(name, raising=False)
        if variable:
            monkeypatch.setenv(variable, "40")
        with create_context_monitor("a", backend=ultramon_backend):
            sources = stored(ultramon_backend).extra.get(SETTING_SOURCES) or {}
            seen.append(list(sources.values()))
    assert seen == [["ULTRAMON_GRACE_SECONDS"], ["ULTRAMON_HEARTBEAT_INTERVAL_SECONDS"], []]


def test_a_response_without_usage_is_estimated_where_its_texts_are_given(ultramon_backend):
    """Each such response counts the whole window anew; a provider's count is worth more."""
    with create_context_monitor("a", CONFIG, backend=ultramon_backend) as monitor:
        for words in (1_000, 2_000):
            silent = {"usage": {"input_tokens": 0, "output_tokens": 0}}
            monitor.report_response(silent, estimate=lambda words=words: ["word " * words])
            state = monitor.get_state()
            assert state.tokens_source == "estimated"
            assert words * 0.8 < state.estimated_tokens < words * 2
        monitor.report_response({"usage": {"input_tokens": 9_000, "output_tokens": 5}})
        monitor.report_response(silent, estimate=lambda: ["word"])
        state = monitor.get_state()
        assert (state.estimated_tokens, state.tokens_source) == (9_000, "reported")


def test_an_agent_that_waited_sees_that_another_owner_continued_it(ultramon_backend):
    """It ends here without ending there."""
    with create_context_monitor("a", CONFIG, backend=ultramon_backend) as monitor:
        assert not monitor.leave_if_taken()
        with create_context_monitor("a", CONFIG, backend=ultramon_backend, takeover=True) as other:
            assert monitor.leave_if_taken()
            assert (monitor.is_active, other.is_active) == (False, True)
            assert stored(ultramon_backend).active
