"""What may leave this machine: each field is in one list, and no text passes that is in none."""

import json
import re
from itertools import count
from pathlib import Path

import pytest
from helpers.sharing import VOCABULARY, strings_in
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.ladder import CRITICAL, FORCE_RETURN, PREPARE_HANDOFF, Ladder, Rung
from ultramon.share import allow_list
from ultramon.share.allow_list import BY_NAME, NEVER_SENT, SENT, level_names, redact
from ultramon.share.identity import Identity, load_identity, new_identity, store_identity
from ultramon.share.sent_events import (
    BASE,
    MEMBERS_NEVER_SENT,
    NEVER_SENT_EVENTS,
    SENT_EVENTS,
    redact_event,
)
from ultramon.state import events
from ultramon.state.event_keys import event_key
from ultramon.state.models import AgentState
from ultramon.state.record import (
    FIELD_NAMES,
    FIELDS,
    StateRecord,
    decode_state,
    encode_state,
    short_id,
)
from ultramon.testing import make_event, make_record

PACKAGE = Path(allow_list.__file__).parent.parent
HERE = Identity("m0123456789ab", bytes(range(32)))
ELSEWHERE = Identity("mba9876543210", bytes(range(1, 33)))
MARK = "Anna's plan"


NUMBERS = count(1)


def marked(kind):
    """Return a value of a kind of field in which every text is one that must not leave."""
    text = f"{MARK} {next(NUMBERS)}"
    values = {
        "str": text,
        "int": 7,
        "bool": True,
        "number": 0.5,
        "time": 1_700_000_000.0,
        "dict": {text: {text: [text, {text: 3}]}, "reason": text, "name": text, "message": text},
        "list": [{text: text, "name": text, "status": text, "result": text, "source": text}],
    }
    return values[kind.rstrip("?")]


def test_every_field_of_a_state_is_in_one_list():
    """A field that is added to the state is not sent, and this test asks what it is."""
    lists = [*SENT, *NEVER_SENT, *(name for names in BY_NAME.values() for name in names)]
    assert sorted(lists) == sorted(attribute for attribute, _, _ in FIELDS)


def made_types():
    """Return every type of event that the package makes, as its source names them."""
    made = re.compile(r'\b(?:make_)?event\([^"()]*"([a-z]+(?:_[a-z]+)+)"')
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return {kind for source in sources for kind in made.findall(source)}


def test_every_member_of_every_event_is_in_one_list():
    """Of each type of event what is sent is known, or that nothing is."""
    assert not {*SENT_EVENTS} & NEVER_SENT_EVENTS
    types = made_types() | {*events._EVENT_TYPES}
    assert {"agent_lost", "agent_refused", "return_requested"} <= types
    for kind in sorted(types):
        assert kind in SENT_EVENTS or kind in NEVER_SENT_EVENTS, kind
        if kind in NEVER_SENT_EVENTS:
            continue
        model = events._EVENT_TYPES.get(kind, events.AgentEvent)
        members = {one.alias or name for name, one in model.model_fields.items()} - {"stored"}
        unknown = members - {"type", *BASE, *SENT_EVENTS[kind], *MEMBERS_NEVER_SENT}
        assert unknown == set(), kind


def test_no_text_of_a_state_passes_but_what_was_named():
    """Each field that can hold text does, and its own extra fields: none is in what is sent."""
    fields = {attribute: marked(kind) for attribute, _, kind in FIELDS[2:]}
    extra = {"sdk": marked("dict"), "claudeCode": marked("dict"), "gauge": MARK, MARK: MARK}
    record = StateRecord("Anna", **fields, extra=extra)
    assert MARK not in json.dumps(redact(record, HERE).to_json())
    assert "Anna" not in json.dumps(redact(record, HERE).to_json())
    for name, attributes in BY_NAME.items():
        shown = redact(record, HERE, (name,)).to_json()
        with_text = {one for one, value in shown.items() if MARK in json.dumps(value)}
        assert with_text == {FIELD_NAMES[attribute] for attribute in attributes}
    tasks = redact(record, HERE, ("tasks",)).tasks
    assert tasks == [{"name": record.tasks[0]["name"], "status": "pending"}]


OPAQUE = re.compile(
    rf"{HERE.machine_id}(-([0-9a-f]{{8}}|[0-9a-f]{{12}}(\.[0-9a-f]{{12}})?))?"
    r"|level-\d+|\d{4}-\d\d-\d\dT[\d:.]+Z|SIG[A-Z0-9]+|"
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**19) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted(VOCABULARY)) | st.text(max_size=6), inner, max_size=4
        )
    ),
    max_leaves=5,
)


@given(st.fixed_dictionaries({one: json_values for one, _, _ in FIELDS[2:]}), json_values)
def test_whatever_a_state_holds_only_known_words_pass(fields, memory):
    """A state that another program wrote may hold anything anywhere."""
    fields["host"], fields["model"] = "codex", None
    record = StateRecord("a", **fields, extra={"codex": memory, "gauge": memory})
    shown = redact(record, HERE).to_json()
    for found in strings_in({**shown, "host": "", **dict.fromkeys(("codex",))}):
        assert found in VOCABULARY | {"codex"} or OPAQUE.fullmatch(found), found


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("claude-sonnet-4-5-20250929", True),
        ("claude-opus-4-6[1m]", True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("anthropic/claude-3.5-sonnet:beta", True),
        ("claude-sonnet-4-5@20250929", True),
        ("qwen2.5-coder:32b", True),
        ("gpt-5.2-codex", True),
        ("arn:aws:bedrock:us-east-1:123456789012:inference-profile/anna", False),
        ("/home/anna/models/secret.gguf", False),
        ("./models/secret", False),
        ("C:\\models\\secret", False),
        ("projects/acme/locations/eu/models/secret", False),
        ("https://models.acme.example/secret", False),
        ("a prompt that came into the wrong field", False),
    ],
)
def test_a_model_is_sent_by_its_name_and_not_by_its_place(model, sent):
    """A path, an account or an address says where one works."""
    assert redact(make_record("a", model=model), HERE).model == (model if sent else None)


def test_levels_of_ones_own_are_sent_as_their_rank():
    """A rung may bear any name; the known ones stay."""
    ladder = Ladder(
        (
            Rung("anna", 0.5, action=PREPARE_HANDOFF),
            Rung(CRITICAL, 0.6, action=PREPARE_HANDOFF),
            Rung("acme", 0.9, action=FORCE_RETURN),
        ),
        base="calm",
    ).to_json()
    names = level_names(ladder)
    assert names == {
        "calm": "level-0",
        "anna": "level-1",
        "critical": "critical",
        "acme": "level-3",
    }
    record = make_record(
        "a",
        ladder=ladder,
        threshold_status="acme",
        announced={"epoch": 1, "rungs": {"anna": 1, "acme": 2}},
        forecast={"rungs": {"acme": {"turns": 3}, "compaction": {"turns": 4, "note": MARK}}},
    )
    shown = redact(record, HERE)
    assert shown.threshold_status == "level-3"
    assert shown.announced == {"epoch": 1, "rungs": {"level-1": 1, "level-3": 2}}
    assert shown.forecast["rungs"] == {"level-3": {"turns": 3}, "compaction": {"turns": 4}}
    assert Ladder.from_json(shown.ladder).names == ("level-0", "level-1", "critical", "level-3")
    crossing = make_event("a", "context_threshold_reached", level="acme", previousLevel="anna")
    assert redact_event(crossing, HERE, names)["level"] == "level-3"
    assert redact_event(crossing, HERE, {})["previousLevel"] == "other"


def test_two_levels_that_look_alike_are_two_events():
    """Both are `other` where the ladder is not known; none is taken for the other."""
    first, second = (
        make_event("a", "context_threshold_reached", level=level) for level in ("anna", "acme")
    )
    keys = {event_key(redact_event(one, HERE, {})) for one in (first, second)}
    keys.add(event_key(redact_event({**first, "eventId": "another"}, HERE, {})))
    assert len(keys) == 2
    assert all(one.startswith(f"{HERE.agent_id('a')}/1/1/") for one in keys)


def test_trees_stay_trees():
    """A parent, a session and a predecessor are found under the ids that they have elsewhere."""
    session = make_record("3af70d39-1b", session_id="3af70d39-1b", host="claude-code")
    child = make_record(
        "3af70d39-1b.agent-7",
        session_id="3af70d39-1b",
        parent_id="3af70d39-1b",
        predecessor_id="b",
        host="claude-code",
        extra={"claudeCode": {"predecessors": ["b"], "waitsFor": "permission"}},
    )
    top, below = redact(session, HERE), redact(child, HERE)
    assert below.parent_id == below.session_id == top.agent_id
    assert below.agent_id.startswith(f"{top.agent_id}.")
    assert below.predecessor_id == redact(make_record("b"), HERE).agent_id
    assert below.extra == {
        "claudeCode": {"waitsFor": "permission", "predecessors": [below.predecessor_id]}
    }
    assert short_id(top) == top.agent_id.partition("-")[2][:8]
    assert short_id(below) == f"{short_id(top)}.{below.agent_id.partition('.')[2]}"
    assert short_id(redact(make_record("b"), HERE)) == HERE.agent_id("b").partition("-")[2]
    assert below.run == top.run != "default"


def test_an_id_leads_back_to_no_agent():
    """Two machines give one agent two ids, and two secrets too."""
    assert HERE.agent_id("scout-1") == HERE.agent_id("scout-1")
    others = [ELSEWHERE, Identity(HERE.machine_id, ELSEWHERE.secret)]
    assert HERE.agent_id("scout-1") not in [one.agent_id("scout-1") for one in others]
    assert "scout" not in HERE.agent_id("scout.scout")


def test_what_is_sent_is_a_valid_state_and_a_valid_event():
    """A reader of the database needs to know nothing of all this."""
    record = make_record("a", exit={"error": MARK, "statusCode": 429, "signal": "SIGKILL"})
    sent = redact(record, HERE)
    again = decode_state(encode_state(sent, "path"), "path")
    assert AgentState.from_record(again).exit == {"statusCode": 429, "signal": "SIGKILL"}
    for kind in SENT_EVENTS:
        event = make_event("a", kind, source="agent:a", reason=MARK, handoff={"notes": MARK})
        shown = redact_event({**event, "secret": MARK}, HERE, {})
        assert MARK not in json.dumps(shown)
        parsed = events.parse_event(shown)
        assert (parsed.type, parsed.source) == (kind, f"agent:{HERE.agent_id('a')}")
    for kind in NEVER_SENT_EVENTS:
        assert redact_event(make_event("a", kind), HERE, {}) is None
    assert redact_event(make_event("a", "of_a_newer_version"), HERE, {}) is None


def test_the_identity_is_kept_and_private(tmp_path):
    """One that others may read, or that is damaged, is refused with the cure."""
    from ultramon.errors import StateCorruptError

    assert load_identity(str(tmp_path)) is None
    made = new_identity()
    store_identity(str(tmp_path), made)
    path = tmp_path / "share-identity.json"
    assert load_identity(str(tmp_path)) == made
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o640)
    with pytest.raises(StateCorruptError, match=f"others may read .* chmod 600 {path}"):
        load_identity(str(tmp_path))
    path.chmod(0o600)
    path.write_text('{"machineId":"m1","secret":"00"}')
    with pytest.raises(StateCorruptError, match="is no identity"):
        load_identity(str(tmp_path))
