import time

import pytest
from helpers.hooked_session import HookedSession
from helpers.observed_agents import NOW, SESSION, observed, session

from ultramon.state.agent_rows import (
    arrange,
    doing_words,
    is_blind,
    name_of,
    need_of,
    runway_to_limit,
    runway_words,
    summarize,
)
from ultramon.state.observed import observe
from ultramon.system.processes import this_machine


def test_names_begin_with_what_a_person_knows():
    """Project and task first; the id comes last, cut where it was generated, else whole."""
    assert name_of(session(label="api-server: mend the roof").record) == (
        "api-server", "mend the roof", "e26fbb3a",
    )  # fmt: skip
    assert str(name_of(session(label="api-server: mend the roof").record)) == (
        "api-server: mend the roof"
    )
    assert name_of(session(child="a1b2c3d4e5").record) == ("api-server", "", "e26fbb3a.a1b2")
    assert str(name_of(session(cwd=None).record)) == "e26fbb3a"
    assert name_of(observed("scout-1", cwd="/srv/orders").record) == ("", "scout-1", "")
    assert name_of(observed("scout-1", label="night").record) == ("", "night", "scout-1")


@pytest.mark.parametrize(
    ("one", "need"),
    [
        (session(), ""),
        (session(phase="waiting"), ""),
        (session(phase="waiting", memory={"waitsFor": "permission"}), "permission"),
        (session(phase="waiting", memory={"waitsFor": "answer"}), "answer"),
        (session(phase="waiting", memory={"waitsFor": ["x"]}), ""),
        (session(phase="in_tool", memory={"waitsFor": "permission"}), ""),
        (session(threshold_status="critical"), "hand over"),
        (session(child="a1", threshold_status="critical"), ""),
        (observed("sdk", threshold_status="critical"), ""),
        (session(phase="waiting", memory={"waitsFor": "answer"}, active=False), ""),
        (session(threshold_status="critical", last_heartbeat=1e9, started_at=1e9), ""),
    ],
)
def test_what_an_agent_needs_from_a_person(one, need):
    """A permission, an answer, or that its work is handed over; only of agents that live."""
    assert need_of(one) == need


def test_agents_without_a_reading_are_blind_but_for_new_ones():
    """The first reply may still be on its way, and a stale agent shows an old number."""
    assert is_blind(session(usage_ratio=None), NOW)
    assert not is_blind(session(usage_ratio=None, started_at=NOW - 10), NOW)
    assert not is_blind(session(usage_ratio=None, epoch_started_at=NOW - 10), NOW)
    assert is_blind(observed("quiet", last_heartbeat=NOW - 60), NOW)
    assert not is_blind(session(usage_ratio=None, active=False), NOW)


def test_above_the_last_level_the_runway_is_that_to_the_limit():
    """The fullest agents are those whose turns a person wants to know."""
    limit = {"turns": 4, "turnsLow": 2, "turnsHigh": 7, "seconds": 4.0}
    critical = {"turns": 1, "turnsLow": 1, "turnsHigh": 3, "seconds": 1.0}
    pace = {"tokensPerTurn": 10_000.0, "secondsPerTurn": 1.0, "limit": limit}
    below = session(usage_ratio=0.6, forecast={**pace, "rungs": {"critical": critical}})
    assert runway_words(below) == "1-3 turns"
    above = {"usage_ratio": 0.9, "forecast": {**pace, "rungs": {}}}
    assert runway_words(session(**above)) == "2-7 turns"
    assert runway_words(session(**above, active=False)) == ""
    assert runway_words(session(usage_ratio=0.9)) == ""


def test_a_task_that_names_its_agent_is_not_said_twice():
    """Of a subagent both are what it was launched for."""
    task = {"current_task": "find the leak"}
    assert doing_words(session(label="api-server: find the leak", **task).record) == ""
    assert doing_words(session(label="api-server: mend the roof", **task).record) == "find the leak"
    assert doing_words(session().record) == ""


def test_one_line_sums_up_all_agents():
    """Who needs a person first, then the one nearest to its end, then what else there is."""
    limit = {"turns": 4, "turnsLow": 2, "turnsHigh": 7, "seconds": 4.0}
    pace = {"tokensPerTurn": 10_000.0, "secondsPerTurn": 1.0, "limit": limit, "rungs": {}}
    near = session(
        usage_ratio=0.789, estimated_tokens=157_800, threshold_status="warning", forecast=pace
    )
    assert str(runway_to_limit(near.record)) == "2-7 turns"
    likely = {"turns": 2, "turnsLow": 1, "turnsHigh": None, "seconds": 1.0}
    likely |= {"tokens": 168_000, "seen": 2}
    near.record.forecast["rungs"] = {"compaction": likely}
    assert str(runway_to_limit(near.record)) == "1+ turns", "the host compacts below its limit"
    near.record.forecast["rungs"] = {"compaction": {"turns": 2, "seconds": 1.0}}
    assert str(runway_to_limit(near.record)) == "2-7 turns", "a rung that somebody called so"
    agents = [
        near,
        session("b" * 8, phase="waiting", memory={"waitsFor": "permission"}),
        session("c" * 8, phase="waiting", memory={"waitsFor": "answer"}),
        session("d" * 8, phase="waiting"),
        session("e" * 8, usage_ratio=None),
        observed("gone", last_heartbeat=1e9, started_at=1e9),
        observed("past", active=False, outcome="returned", usage_ratio=0.99),
    ]
    assert str(summarize(agents, NOW)) == (
        "2 need you, first api-server: bbbbbbbb · api-server 78 %, ~2-7 turns to compaction"
        " · 1 lost · 1 blind · 1 working · 1 waiting"
    )
    named = session("a" * 8, label="api-server: answer the security review", action="force_return")
    assert str(summarize([*agents[1:2], named], NOW)) == (
        '2 need you, first "answer the security review" 10 %'
    )
    longer = session(label="api-server: answer the whole security review", action="force_return")
    assert str(summarize([longer], NOW)) == '1 needs you: "answer the whole security..." 10 %'
    assert str(summarize([], NOW)) == ""
    worker = observed("0" * 32, label="review it", host="sdk", cwd=None, usage_ratio=0.5)
    assert str(summarize([worker], NOW)).startswith('"review it" 50 % · '), "no project"
    taken = [*agents, observed("next", predecessor_id="gone")]
    assert summarize(taken, NOW).lost == 0, "its work goes on"


def shape(rows):
    return {row.agent_id: (len(row.earlier), shape(row.children)) for row in rows}


def test_rows_are_grouped_by_run_and_project_with_subagents_below():
    """A subagent stands below its session, what needs a person above what does not."""
    other = "f" * 8
    waits = {"waitsFor": "permission"}
    agents = [
        session(usage_ratio=0.6),
        session(child="a1", usage_ratio=0.2),
        session(child="a2", phase="waiting", memory=waits),
        session(other, cwd="/home/a/web"),
        observed("w1", run="audit", usage_ratio=0.5),
        observed("orphan", run="audit", parent_id="nobody"),
    ]
    groups = arrange(agents)
    assert [(group.run, group.project) for group in groups] == [
        ("claude-code", "api-server"), ("audit", ""), ("claude-code", "web"),
    ]  # fmt: skip
    assert shape(groups[0].rows) == {
        SESSION: (0, {f"{SESSION}.a2": (0, {}), f"{SESSION}.a1": (0, {})})
    }
    assert list(shape(groups[0].rows)[SESSION][1]) == [f"{SESSION}.a2", f"{SESSION}.a1"]
    assert shape(groups[1].rows) == {"w1": (0, {}), "orphan": (0, {})}


def test_a_chain_of_handoffs_is_one_row():
    """Earlier contexts are folded into the one that continues; their subagents come along."""
    ended = {"active": False, "outcome": "returned"}
    agents = [
        observed("w1", started_at=NOW - 300, **ended),
        observed("w2", started_at=NOW - 200, last_heartbeat=1e9, predecessor_id="w1"),
        observed("w3", started_at=NOW - 100, predecessor_id="w2"),
        observed("child", parent_id="w2"),
        session("old", active=False, memory={"successorId": SESSION}),
        session(memory={"predecessors": ["old"]}),
    ]
    runs = {group.run: shape(group.rows) for group in arrange(agents)}
    assert runs["default"] == {"w3": (2, {"child": (0, {})})}
    assert runs["claude-code"] == {SESSION: (1, {})}
    # The one before still works: both are shown.
    both = [observed("a", started_at=NOW - 200), observed("b", predecessor_id="a")]
    assert shape(arrange(both)[0].rows) == {"a": (0, {}), "b": (0, {})}


def test_states_that_contradict_each_other_still_make_a_tree():
    """Parents in a circle, an agent that is its own parent or predecessor: all are shown once."""
    agents = [
        observed("a", parent_id="b"),
        observed("b", parent_id="a"),
        observed("c", parent_id="c", predecessor_id="c"),
        observed("d", active=False, predecessor_id="e"),
        observed("e", active=False, predecessor_id="d"),
    ]

    def ids(rows):
        for row in rows:
            yield row.agent_id
            yield from (one.record.agent_id for one in row.earlier)
            yield from ids(row.children)

    shown = [name for group in arrange(agents) for name in ids(group.rows)]
    assert sorted(shown) == ["a", "b", "c", "d", "e"]


def test_hooks_note_what_a_session_waits_for(tmp_path):
    """A permission and a question are not the end of a turn; work takes the need away."""
    hooked = HookedSession(tmp_path)

    def need():
        return need_of(observe(hooked.record(), None, time.time(), this_machine()))

    hooked.call("UserPromptSubmit", prompt="mend the roof")
    hooked.call("PermissionRequest", tool_name="Bash", tool_input={})
    assert need() == "permission"
    hooked.tool(50_000)
    assert need() == ""
    hooked.call("Notification", message="?", notification_type="elicitation_dialog")
    assert need() == "answer"
    hooked.call("Stop", stop_hook_active=False)
    assert need() == ""
    hooked.call("Notification", message="Claude is waiting for your input")
    assert (need(), hooked.record().phase) == ("", "waiting")
    hooked.call("Notification", message="Claude needs your permission to use Bash")
    assert need() == "permission"
