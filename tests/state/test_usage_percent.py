"""A usage ratio in whole percents: no face denies what the ladder says."""

import re

from helpers.stored_gauge import Stored
from hypothesis import example, given
from hypothesis import strategies as st

from ultramon.backends.base import StoredAgent
from ultramon.cli.commands import context as context_command
from ultramon.cli.commands import resume
from ultramon.cli.views import agent_table, tmux_line
from ultramon.context.explanation import explain
from ultramon.context.ladder import Ladder, Rung
from ultramon.context.note import write_note
from ultramon.fleet.snapshot import take_snapshot
from ultramon.hosts.status_line.program import write_line
from ultramon.notices import texts
from ultramon.notices.levels import decide
from ultramon.pictures.elements import to_html
from ultramon.state.agent_rows import summarize
from ultramon.state.event_words import event_words
from ultramon.state.observed import observe
from ultramon.state.usage_percent import percent_down, usage_percent, whole_percent
from ultramon.system.processes import this_machine
from ultramon.testing.clock import START
from ultramon.web.pages import fleet

LIMITS = st.one_of(st.integers(1_000, 2_000_000), st.integers(1, 1_000_000_000))
PERCENTS = st.integers(1, 100)


@st.composite
def near_a_rung(draw, limits=LIMITS):
    """A limit, a rung in whole percents, and tokens around the place where it is reached."""
    limit, percent = draw(limits), draw(PERCENTS)
    tokens = limit * percent // 100 + draw(st.integers(-limit // 90 - 2, limit // 90 + 2))
    return limit, percent, max(tokens, 0)


@given(near_a_rung(), st.booleans())
@example((200_000, 85, 169_999), False)
@example((200_000, 75, 148_999), True)
@example((10_000_000, 85, 8_499_999), False)
def test_a_whole_percentage_is_at_least_the_rungs_where_it_is_reached(near, rounds):
    """Whatever the numbers, and whether the ladder rounds or not; decimals go down."""
    limit, percent, tokens = near
    ladder = Ladder([Rung("rung", percent / 100)], round_percent=rounds)
    (rung,) = ladder.resolve(limit).rungs
    ratio = tokens / limit
    assert (whole_percent(ratio, rounds=rounds) >= percent) is (ratio >= rung.ratio)
    if not rounds:
        assert (percent_down(ratio) >= percent) is (ratio >= rung.ratio)


def test_percents_round_halves_up_where_a_ladder_does():
    """As Claude Code shows them, 64.5 % is 65 %; else it is 64 %."""
    ratios = (0.6449, 0.645, 0.7, 0.29, 1.2)
    assert [whole_percent(one, rounds=True) for one in ratios] == [64, 65, 70, 29, 120]
    assert [whole_percent(one, rounds=False) for one in ratios] == [64, 64, 70, 29, 120]


@given(near_a_rung(), st.booleans(), st.integers(1, 1_000_000))
def test_a_chart_draws_a_rung_at_its_deciding_token(near, rounds, tokens_left):
    """The token that reaches it; one less does not."""
    limit, percent, _ = near
    ladder = Ladder([Rung("rung", percent / 100, tokens_left)], round_percent=rounds)
    for rung in ladder.resolve(limit).rungs:
        at = rung.tokens(limit)
        assert at / limit >= rung.ratio > (at - 1) / limit


def shown_by_every_face(stored, record):
    """What each face says of an agent, by the face."""
    now = START + 2
    one = observe(record, now, now, this_machine())
    look = agent_table.Look(is_wide=False, ascii_only=False)
    snapshot = take_snapshot(StoredAgent(record.agent_id, record, now, None), None)
    decision = decide(None, record, None)
    rounds = stored.ladder.round_percent
    (application,) = [
        column for column in agent_table.OF_THE_APPLICATION if column.header == "usage"
    ]
    faces = {
        "status, watch": application.cell(one, look)[0],
        "tmux": tmux_line._fullness(one),
        "summary": str(summarize([one], now)),
        "context": context_command._brief(snapshot, now),
        "resume": resume._describe(one),
        "explain": str(explain(record, one.liveness, now)).partition(" = ")[2],
        "status line": write_line(record, color=False),
        "note": write_note(
            record.estimated_tokens,
            record.context_limit,
            reading=("reported", START),
            now=now,
            rounds=rounds,
        ),
        "page": to_html(fleet.usage_bar(one)),
    }
    if decision is not None:
        facts = texts.level_facts(record, decision, record.usage_ratio, rounds=rounds)
        faces["notice"] = texts.render(facts, "boss", name="agent", now=now)
    for event in stored.events:
        faces[event["type"]] = event_words(event)
    return faces


@given(near_a_rung(st.integers(1_000, 190_000)), st.booleans())
@example((200_000, 90, 179_999), False)
@example((200_000, 75, 149_000), True)
@example((200_000, 75, 148_999), True)
def test_every_face_shows_the_percentage_that_the_ladder_judged(near, rounds):
    """No screen shows 90 % while the ladder says below 90, or the reverse."""
    limit, percent, tokens = near
    ladder = Ladder([Rung("high", percent / 100, action="force_return")], round_percent=rounds)
    stored = Stored(ladder, limit)
    stored.take(max(tokens, 1))
    record = stored.record
    record.active = True
    expected = usage_percent(record)
    assert (expected >= percent) is (record.threshold_status == "high")
    for face, text in shown_by_every_face(stored, record).items():
        found = re.search(r"([\d,]+) ?%", text)
        assert found, (face, text)
        assert int(found[1].replace(",", "")) == expected, (face, text)
