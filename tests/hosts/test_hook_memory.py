"""What hooks remember of an agent: typed fields over the same JSON, reset in one place."""

from __future__ import annotations

import time

import pytest
from helpers.hooked_session import SESSION, HookedSession, tokens_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ultramon.backends.local.state_files import StateDirectory
from ultramon.context.gauge import GaugeMemory
from ultramon.hosts.calls.enforcement import describe, is_enforced
from ultramon.hosts.calls.facts import Asked, Enforced, LastPrompt, LeftTasks, Warned, of_epoch
from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.memory import HookMemory
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.state.record import member_name
from ultramon.state.stored_fields import StoredFields
from ultramon.system import compact_json

FIELDS = (*GaugeMemory.__annotations__, *HookMemory.__annotations__)
TELLER = [4711, "1764083000.25"]
EARLIER = {
    "turns": [[40_000, 1764083001.5], [61_000, 1764083002.5]],
    "environment": {"CLAUDE_PID": "4711", "TMUX_PANE": "%7"},
    "windowTokens": 200_000,
    "triggerTokens": 167_000,
    "refusalTokens": 197_000,
    "observedTokens": 200_000,
    "likelyTokens": 168_000,
    "likelySeen": 2,
    "highestTokens": 152_000,
    "readingsAfter": 1764083000.0,
    "readingFile": 1_311_072,
    "readingEnd": 20_480,
    "installedAt": 1764000000.0,
    "prompts": 2,
    "statusTokens": 61_000,
    "transcriptPath": "/home/ada/.claude/projects/p/session.jsonl",
    "tmuxPane": "%7",
    "lastReplyAt": 1764083002.5,
    "predecessors": ["second", "first"],
    "successorId": "fourth",
    "isCleared": True,
    "isCompacted": True,
    "isLagging": True,
    "compactedBy": "SessionStart",
    "compactionId": "summary-1",
    "clientVersion": "2.1.330",
    "fullAt": 166_000,
    "running": ["toolu_1", "toolu_2"],
    "endedEarly": ["toolu_0"],
    "callEndedAt": 1234.5,
    "runsNothingSince": 1200.25,
    "waitsFor": "permission",
    "turnEnded": True,
    "failedWith": "rate_limit",
    "lastPrompt": {"text": "read it all", "chars": 11},
    "shownRequest": "0123456789abcdef",
    "toldOfMessages": {"urgent": 4, "sequential": 7},
    "pendingEnds": {"session.a": None, "session.b": TELLER},
    "toldEnds": {"session.c": 1},
    "leftTasks": {"count": 4, "names": ["a", "b", "c"]},
    "lastText": "I was about to",
    "stopReason": "too late",
    "returnedNoText": True,
    "warned": {
        "epoch": 2, "level": "warning", "silentCalls": 3, "messageId": "msg_1", "printer": TELLER,
    },
    "asked": {"epoch": 2, "at": 1764083002.5, "reply": "msg_2", "replies": 2},
    "endedCalls": ["toolu_0"],
    "enforced": {
        "at": 1764083003.0, "tokens": 160_003, "checkpoint": None, "problem": "no repository",
        "printer": TELLER,
    },
    "wouldEnforce": {"at": 1764083003.0, "tokens": 160_003},
}  # fmt: skip
"""A memory with every field, as versions before the typed record wrote it."""


def copied(value):
    return compact_json.loads(compact_json.dumps(value))


def filled():
    """A memory of its own with every field."""
    return HookMemory.of(copied(EARLIER))


def test_a_memory_of_an_earlier_version_is_read():
    """Every field has its value, those inside of others too."""
    memory = filled()
    assert {member_name(name) for name in FIELDS} == EARLIER.keys()
    for name in FIELDS:
        value = getattr(memory, name)
        assert value
        if isinstance(value, StoredFields):
            value = value.to_json()
        assert value == EARLIER[member_name(name)]
    assert (memory.warned.level, memory.warned.silent_calls) == ("warning", 3)
    assert (memory.asked.replies, memory.left_tasks.names) == (2, ["a", "b", "c"])
    assert (memory.last_prompt.chars, memory.enforced.problem) == (11, "no repository")


def test_what_is_known_survives_byte_for_byte():
    """Also in its order, and beside members of a later version."""
    members = {"later": {"a": [1, None]}} | EARLIER | {"another": 1e-7}
    before = compact_json.dumps(members)
    memory = HookMemory.of(compact_json.loads(before))
    for name in FIELDS:
        setattr(memory, name, getattr(memory, name))
    assert compact_json.dumps(memory.to_json()) == before


def test_what_is_missing_is_empty_and_stays_missing():
    """A read writes nothing; a field without a value is not the same as one with an empty one."""
    memory = HookMemory()
    assert not any(getattr(memory, name) for name in FIELDS)
    assert memory.to_json() == {}
    memory.is_lagging = False
    memory.trigger_tokens = None
    del memory.is_compacted
    assert memory.to_json() == {"isLagging": False, "triggerTokens": None}


def test_there_are_no_other_fields():
    """A name that is misspelt is an error, read or written."""
    memory = HookMemory()
    for use in (
        lambda: memory.warnt,
        lambda: setattr(memory, "warnt", 1),
        lambda: delattr(memory, "warnt"),
        lambda: Warned(epoch=1, levle="warning"),
        lambda: StoredFields.part("Warned"),
    ):
        with pytest.raises((AttributeError, TypeError), match=r"has no (field|part)"):
            use()


WRONG = {
    "window_tokens": ["200000", 0, -1, True, 1.5, 10**18, [], None],
    "highest_tokens": ["1", -1, False, 10**18],
    "readings_after": ["2026", 1e300, True, {}],
    "transcript_path": [5, ["/a"], {}],
    "environment": [5, [], "PATH"],
    "is_cleared": [1, "true", [True]],
    "running": ["toolu_1", {"toolu_1": 1}, 7],
    "turns": [{}, "turns", 5],
    "pending_ends": [["a"], "a", 1],
    "told_ends": [["a"], "a", 1],
    "warned": [[], "warning", 2],
    "left_tasks": [4, ["a"]],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_kind_counts_as_none(name):
    """It is left as it stands until the field is written."""
    for value in WRONG[name]:
        memory = HookMemory.of({member_name(name): value})
        assert not getattr(memory, name)
        assert memory.to_json() == {member_name(name): value}


def test_of_a_list_or_mapping_what_is_damaged_is_left_out():
    memory = HookMemory.of(
        {
            "running": ["toolu_1", 5, None, ["toolu_2"], "toolu_3"],
            "predecessors": ["second", "..", "", 7, "first"],
            "toldEnds": {"a": 1, "b": "1", "c": -1, "d": True},
            "environment": {"HOME": "/home/ada", "PWD": 5},
            "turns": [[1, 2.0], [1], [1, "2"], [1, True], "12", [3, 4.5]],
        }
    )
    assert memory.running == ["toolu_1", "toolu_3"]
    assert memory.predecessors == ["second", "first"]
    assert (memory.told_ends, memory.environment) == ({"a": 1}, {"HOME": "/home/ada"})
    assert memory.turns == [[1, 2.0], [3, 4.5]]


# --- what the events in the life of an agent leave

RESETS = {
    "begin_life": (
        lambda memory: memory.begin_life(),
        {"successorId", "leftTasks", "lastText", "stopReason", "turnEnded", "returnedNoText"},
        set(),
    ),
    "begin_turn": (
        lambda memory: memory.begin_turn(9.5),
        {"running", "callEndedAt", "endedEarly", "waitsFor", "turnEnded", "failedWith"},
        {"runsNothingSince"},
    ),
    "run_nothing": (
        lambda memory: memory.run_nothing(9.5),
        {"running", "callEndedAt", "endedEarly", "waitsFor"},
        {"runsNothingSince"},
    ),
    "begin_call": (
        lambda memory: memory.begin_call("toolu_3"),
        {"waitsFor", "turnEnded"},
        {"running"},
    ),
    "end_call": (
        lambda memory: memory.end_call("toolu_1", 9.5),
        {"waitsFor"},
        {"running", "callEndedAt"},
    ),
    "end_call whose start is reported later": (
        lambda memory: memory.end_call("toolu_4", 9.5),
        {"waitsFor"},
        {"endedEarly", "callEndedAt"},
    ),
    "begin_window": (
        lambda memory: memory.begin_window(),
        {"warned", "isLagging"},
        set(),
    ),
    "follow": (
        lambda memory: memory.follow("third", HookMemory.of({"predecessors": ["zeroth"]})),
        set(),
        {"predecessors"},
    ),
}


@pytest.mark.parametrize("event", RESETS)
def test_each_event_resets_exactly_its_fields(event):
    """Every other field keeps its value."""
    act, removed, changed = RESETS[event]
    memory = filled()
    act(memory)
    after = memory.to_json()
    assert EARLIER.keys() - after.keys() == removed
    assert {name for name in after if after[name] != EARLIER.get(name)} == changed


def test_a_compaction_is_to_be_read_of():
    memory = HookMemory()
    memory.begin_window()
    assert memory.is_compacted


def test_of_two_events_that_report_one_compaction_the_first_counts():
    """In either order, and again at the next compaction."""
    memory = HookMemory()
    for first, second in (("PostCompact", "SessionStart"), ("SessionStart", "PostCompact")):
        assert memory.is_first_report(first)
        assert not memory.is_first_report(second)
    # Old clients send only one of them.
    assert memory.is_first_report("PostCompact")
    assert memory.is_first_report("PostCompact")


def test_a_session_that_was_ended_stays_so_after_a_clear():
    """What its successor has noted itself is kept."""
    memory = HookMemory()
    memory.follow("old", filled())
    assert memory.predecessors == ["old", "second", "first"]
    assert memory.enforced.to_json() == EARLIER["enforced"]
    assert memory.would_enforce.to_json() == EARLIER["wouldEnforce"]
    memory.enforced = Enforced(at=1.0)
    memory.follow("older", filled())
    assert memory.enforced.at == 1.0


def test_what_is_the_first_of_its_epoch_is_decided_in_one_place():
    for kept in (Warned(epoch=2, level="warning"), Asked(epoch=2, at=1.0)):
        assert of_epoch(kept, 2) is kept
        assert of_epoch(kept, 3) is None
    assert of_epoch(None, 2) is None


# --- any JSON in any field

KINDS = (Warned, Asked, Enforced, LastPrompt, LeftTasks)
LEAVES = (
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(-5, 300_000)
    | st.sampled_from([10**18, -(10**20), 10**30, 1e300, 0.5, 1764083000.0])
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
NAMES = st.sampled_from(
    [*EARLIER, *(member_name(name) for kind in KINDS for name in kind.__annotations__), "epoch"]
) | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
DAMAGED = st.dictionaries(st.sampled_from(list(EARLIER)), JSON, min_size=1, max_size=12)


@given(DAMAGED, st.booleans())
def test_to_read_a_damaged_memory_raises_nothing_and_changes_nothing(damage, keeps_rest):
    members = (copied(EARLIER) if keeps_rest else {}) | damage
    before = compact_json.dumps(members)
    memory = HookMemory.of(members)
    for name in FIELDS:
        value = getattr(memory, name)
        for inner in type(value).__annotations__ if isinstance(value, StoredFields) else ():
            getattr(value, inner)
    is_enforced(memory)
    describe(memory)
    assert compact_json.dumps(memory.to_json()) == before


def session_in(path):
    session = HookedSession(path)
    session.freeze(enforce="critical", pins=True, context_limit_tokens=200_000)
    return session


def call(session, event, **fields):
    """One hook call in this process, as far as the client having its answer."""
    payload = session.payload(event, **fields)
    store = HookStore(
        CLAUDE_CODE, str(session.state), str(session.installed), session.environ,
        event=event, now=time.time(),
    )  # fmt: skip
    made = HookCall(CLAUDE_CODE.dialect.read_event(payload, session.environ), store)
    made.answer()
    made.acknowledge()


def remember(session, damage):
    """Damage what is kept of the agent in its state."""
    directory = StateDirectory(str(session.state))
    with directory.locked(SESSION, 1.0):
        record = directory.read_to_replace(SESSION)
        kept = record.extra["claudeCode"]
        kept |= damage | {"later": 1}
        directory.replace(record, durable=False)


ROUND = (
    ("PreToolUse", {"tool_name": "Bash", "tool_use_id": "toolu_a"}),
    ("PostToolUse", {"tool_name": "Bash", "tool_use_id": "toolu_a", "tool_response": {}}),
    ("PostToolBatch", {"tool_calls": [{"tool_use_id": "toolu_a"}]}),
    ("Notification", {"notification_type": "permission_prompt"}),
    ("UserPromptSubmit", {"prompt": "go on"}),
    ("Stop", {"last_assistant_message": "done"}),
    ("PreCompact", {"trigger": "auto"}),
    ("SessionStart", {"source": "compact"}),
    ("SessionStart", {"source": "clear"}),
    ("SessionStart", {"source": "resume"}),
    ("SessionEnd", {"reason": "other"}),
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.sampled_from(ROUND), DAMAGED), min_size=1, max_size=4))
def test_no_value_of_a_field_breaks_a_hook(tmp_path_factory, steps):
    """At a level where the agent is warned and asked to return; what no version knows is kept."""
    session = session_in(tmp_path_factory.mktemp("damaged"))
    session.reply(tokens_at(20), "toolu_a", text="done")
    call(session, "SessionStart", source="startup", model="claude-sonnet-4-5")
    for (event, fields), damage in steps:
        remember(session, damage)
        call(session, event, **fields)
        assert session.memory()["later"] == 1
    session.reply(tokens_at(15), "toolu_b")
    call(session, "PostToolUse", tool_name="Bash", tool_use_id="toolu_b", tool_response={})
