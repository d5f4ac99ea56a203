"""What the agents of a relay's context spend is counted once, and compared with one reserve."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.hooked_session import MODEL, HookedSession

from ultramon.hosts.calls.spending import (
    FOLDER,
    REASON,
    SPENT_SUFFIX,
    Reserve,
    Spent,
    spent_of_context,
)
from ultramon.hosts.calls.switches import RELAY_FOLDER
from ultramon.hosts.transcripts.records import Billed, Report

WEIGHTS = [[0, 3_000, 300, 3_750, 6_000, 15_000], [200_000, 6_000, 600, 7_500, 12_000, 22_500]]


@pytest.fixture
def session(tmp_path):
    """A session in a relay."""
    found = HookedSession(tmp_path, ULTRAMON_RELAY="review")
    folder = found.state / RELAY_FOLDER / "review"
    (folder / FOLDER).mkdir(parents=True)
    found.installed = folder / "claude-code.json"
    found.environ["ULTRAMON_STATE_DIR"] = str(found.state)
    return found


def folder_of(session):
    return str(session.installed.parent)


def keep(session, tokens=None, nano_usd=None, weights=None):
    Reserve(tokens, nano_usd, weights or {}).store(folder_of(session), session.session_id)


def is_ended(answer):
    return answer.value is not None and answer.value.get("stopReason") == REASON


def test_a_reply_that_spends_the_rest_is_the_last(session):
    """The answer to its call ends the turn, and the state says why."""
    keep(session, tokens=45_000)
    assert [is_ended(session.tool(20_000)) for _ in range(3)] == [False, False, True]
    record = session.record()
    assert (record.active, record.outcome) == (False, "cancelled")
    assert record.exit["reason"] == "what the relay may spend is spent"


def test_without_a_reserve_nothing_is_counted(session):
    assert not is_ended(session.tool(20_000))
    assert spent_of_context(folder_of(session), session.session_id) == {}


def test_a_subagent_and_its_session_spend_one_reserve(session):
    """Each is counted by its own transcript; whichever calls next is ended."""
    keep(session, tokens=50_000)
    assert not is_ended(session.tool(20_000))
    assert not is_ended(session.tool(20_000, agent="a1"))
    assert is_ended(session.tool(20_000, agent="a1"))
    assert is_ended(session.tool(20_000))
    spent = spent_of_context(folder_of(session), session.session_id)
    assert {name: sum(one.all_kinds) for name, one in spent.items()} == {
        "session": 40_010,
        "session.a1": 40_010,
    }


def test_lines_of_one_reply_are_counted_once(session):
    """The client writes a line for each block of a reply, with the same numbers."""
    keep(session, tokens=45_000)
    made = session.reply_line(20_000, "call-1")
    session.write(made, made, made)
    assert not is_ended(
        session.call("PostToolUse", tool_name="Bash", tool_response={}, tool_use_id="call-1")
    )
    (spent,) = spent_of_context(folder_of(session), session.session_id).values()
    assert spent.all_kinds == [10, 19_990, 0, 0, 5]
    assert spent.unweighed == []


def test_a_model_is_weighed_in_the_call_that_sees_it_first(session):
    """The relay looks at its process now and then; the call waits for it, and the cap holds."""
    keep(session, nano_usd=6_000_000)

    def find_weights():
        spent = {}
        while not any(one.all_unweighed for one in spent.values()):
            with suppress(ValueError, OSError):
                spent = spent_of_context(folder_of(session), session.session_id)
        keep(session, nano_usd=6_000_000, weights={MODEL: WEIGHTS})

    relay = threading.Thread(target=find_weights)
    relay.start()
    assert is_ended(session.tool(20_000))
    relay.join()


def test_a_model_is_weighed_once_the_relay_knows_it(session):
    """Until then its replies wait, and their tokens count; a call has waited for that once."""
    keep(session, nano_usd=20_000_000)
    waited = json.dumps(Spent({"awaited": [MODEL]}).to_json())
    own = Path(folder_of(session), FOLDER, session.session_id + SPENT_SUFFIX)
    own.write_text(waited)
    own.chmod(0o600)
    assert not is_ended(session.tool(20_000))
    (before,) = spent_of_context(folder_of(session), session.session_id).values()
    assert (before.all_nano_usd, [one[0] for one in before.unweighed]) == (0, [MODEL])
    keep(session, nano_usd=20_000_000, weights={MODEL: WEIGHTS})
    assert not is_ended(session.tool(20_000))
    (after,) = spent_of_context(folder_of(session), session.session_id).values()
    assert after.unweighed == []
    assert after.all_nano_usd == 2 * (10 * 3_000 + 19_990 * 300 + 5 * 15_000)


NO_RESERVES = [
    {"tokens": "many"},
    {"tokens": True},
    {"tokens": -1},
    {"nanoUsd": 0.5},
    {"weights": []},
    {"weights": {MODEL: []}},
    {"weights": {MODEL: [[5, 1, 1, 1, 1, 1]]}},
    {"weights": {MODEL: [[0, 1, 1, 1, 1]]}},
    {"weights": {MODEL: [[0, 1, 1, 1, 1, "1"]]}},
]
"""What makes no sense in a reserve."""
NOTHING_SPENT = [
    {"tokens": [1, 2, 3, 4, "5"]},
    {"tokens": {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}},
    {"nanoUsd": "much"},
    {"largestTokens": None},
    {"unweighed": [["m", 1]]},
    {"unweighed": [["m", 1, [1, 2, 3, 4]]]},
    {"heldUnweighed": 5},
    {"offset": -1},
    {"reader": []},
    {"last": ["m", 1, [0, 0, 0, 0, 0], "dear"]},
    {"counted": [["m"]]},
]
"""What makes no sense in what was spent."""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kind, text) for kind in ("reserve", "spent") for text in ("{", "[]", "3")),
        ("reserve", '{"tokens": 1}'),
        *(("reserve", {"tokens": 1, "nanoUsd": 1, "weights": {}} | one) for one in NO_RESERVES),
        *(("spent", one) for one in NOTHING_SPENT),
    ],
    ids=str,
)
def test_a_damaged_file_ends_nothing_and_is_said(session, kind, text):
    """Neither a form that no relay wrote nor half a file lets the host wait or fail."""
    keep(session, tokens=1)
    path = session.installed.parent / FOLDER / f"session.{kind}.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    assert not is_ended(session.tool(20_000))
    (problem,) = session.failures()
    assert "what it spends is not counted" in problem


def report(tokens, output, update=False):
    return Report("m", MODEL, MODEL, tokens, 0, 0, output, update=update)


def test_a_correction_takes_the_place_of_the_reply():
    """Numbers of a reply that is still written are repeated with its last ones."""
    reserve, spent = Reserve(None, 10**12, {MODEL: WEIGHTS}), Spent()
    spent.add(report(1_000, 1), reserve)
    spent.add(report(1_000, 400, update=True), reserve)
    assert spent.all_kinds == [1_000, 0, 0, 0, 400]
    assert spent.all_nano_usd == 1_000 * 3_000 + 400 * 15_000
    again = Spent(json.loads(json.dumps(spent.to_json())))
    again.add(report(1_000, 500, update=True), reserve)
    assert again.all_kinds == [1_000, 0, 0, 0, 500]


@pytest.mark.parametrize(("request_tokens", "weight"), [(200_000, 3_000), (200_001, 6_000)])
def test_a_large_request_is_dearer(request_tokens, weight):
    """A tier holds above its first number, for the whole request."""
    reserve = Reserve(None, 1, {MODEL: WEIGHTS})
    assert reserve.weigh(MODEL, request_tokens, [10, 0, 0, 0, 0]) == 10 * weight


def test_a_transcript_that_was_written_anew_counts_only_what_is_new(session):
    """A host that compacts may leave a shorter file, with the last replies still in it."""
    keep(session, tokens=10**9)
    replies = [session.reply_line(20_000, text="x" * 500) for _ in range(4)]
    session.write(*replies)
    assert not is_ended(session.tool(20_000))
    session.transcript.write_bytes(b"")
    session.write(*replies[2:])
    assert not is_ended(session.tool(20_000))
    (spent,) = spent_of_context(folder_of(session), session.session_id).values()
    assert sum(spent.all_kinds) == 6 * 20_005


def test_a_correction_finds_its_reply_behind_a_summary():
    """Other requests are counted between the two."""
    for weights in ({MODEL: WEIGHTS}, {}):
        reserve, spent = Reserve(None, 10**12, weights), Spent()
        spent.add(report(1_000, 1), reserve)
        spent = Spent(json.loads(json.dumps(spent.to_json())))
        spent.add(Billed(MODEL, (7, 0, 0, 0, 9)), reserve)
        spent.add(report(1_000, 400, update=True), reserve)
        assert spent.all_kinds == [1_007, 0, 0, 0, 409]
        spent.weigh_again(Reserve(None, 10**12, {MODEL: WEIGHTS}))
        assert spent.all_nano_usd == 1_007 * 3_000 + 409 * 15_000


def test_a_reply_that_is_weighed_later_counts_as_the_largest():
    """One more of its size may spend the rest."""
    spent = Spent()
    spent.add(report(1_000, 400), Reserve(None, 10_000_000, {}))
    assert spent.largest_tokens == 1_400
    reserve = Reserve(None, 20_000_000, {MODEL: WEIGHTS})
    spent.weigh_again(reserve)
    assert spent.largest_nano_usd == 1_000 * 3_000 + 400 * 15_000
    assert reserve.is_near([spent])


def test_a_reply_that_may_be_taken_back_waits_for_its_weight():
    """The relay finds the model in what is stored; the reply is weighed as a counted one is."""
    reserve, spent = Reserve(None, 10**12, {}), Spent()
    spent.hold([report(1_000, 400)], reserve)
    spent = Spent(json.loads(json.dumps(spent.to_json())))
    assert [model for model, _, _ in spent.all_unweighed] == [MODEL]
    spent.hold([report(1_000, 400)], Reserve(None, 10**12, {MODEL: WEIGHTS}))
    assert (spent.all_unweighed, spent.all_nano_usd) == ([], 1_000 * 3_000 + 400 * 15_000)
