"""What a conversation is given back after its compaction: word for word, bounded, if chosen."""

from __future__ import annotations

import json

import pytest
from helpers import program
from helpers.hooked_session import RECORDED, SESSION, HookedSession

from ultramon.backends.local.state_files import StateDirectory
from ultramon.state.pins import MAX_PIN_CHARS, MAX_RULES_BYTES, Pin, Pins

RULE = "Never touch  the `migrations`\nfolder."
COMPACTED = "Context window compacted at "


@pytest.fixture
def session(tmp_path):
    session = HookedSession(tmp_path)
    session.freeze(pins=True)
    return session


@pytest.fixture
def pins(session):
    return Pins(str(session.state))


def put(pins, owner, text, *, is_session=False):
    return pins.add(Pin(str(owner), text, None), is_session=is_session)


def compact(session, agent=None):
    """What is given back after a compaction, without the line about its time."""
    session.call("PreCompact", agent, trigger="auto")
    session.boundary(agent)
    text = session.call("SessionStart", agent, source="compact").text
    given, mark, _ = text.rpartition(COMPACTED)
    assert mark
    return given.removesuffix("\n")


def plan(session, **tasks):
    directory = StateDirectory(str(session.state))
    with directory.locked(SESSION, 1.0):
        record = directory.read_to_replace(SESSION)
        record.tasks = [
            {"name": name, "status": status, "result": None} for name, status in tasks.items()
        ]
        record.tasks_total = len(tasks)
        directory.replace(record, durable=False)


def test_pins_instruction_and_tasks_are_given_back_word_for_word(session, pins):
    put(pins, session.project, RULE)
    rules = session.project / "RULES.md"
    rules.write_text("# Rules\n\n- two  spaces\n")
    pins.add(Pin(str(session.project), None, str(rules)), is_session=False)
    put(pins, SESSION, "Only this session.", is_session=True)
    put(pins, session.path / "elsewhere", "Another project.")
    session.call("UserPromptSubmit", prompt="Fix the parser.\n\n  Then stop.")
    session.call("UserPromptSubmit", prompt="<task-notification>not a person</task-notification>")
    plan(session, read="done", fix="in_progress", test="pending")
    assert compact(session) == (
        "Rules that the user has pinned, word for word:\n"
        f"1. {RULE}\n"
        f"2. {rules}:\n# Rules\n\n- two  spaces\n"
        "3. Only this session.\n"
        "The user's last instruction, word for word:\nFix the parser.\n\n  Then stop.\n"
        "Open tasks of the plan, 2 of 3:\n- fix (in progress)\n- test"
    )
    assert session.failures() == []


def test_the_recorded_compaction_gets_its_pins(session, pins):
    put(pins, session.project, RULE)
    payload = json.loads((RECORDED / "payloads" / "SessionStart_compact.json").read_text())
    assert f"1. {RULE}\n" in session.run(payload).text


def test_without_the_choice_nothing_is_kept_or_given_back(session, pins):
    """What an earlier choice kept goes with the next prompt."""
    put(pins, session.project, RULE)
    session.call("UserPromptSubmit", prompt="a secret")
    assert session.memory()["lastPrompt"] == {"text": "a secret", "chars": 8}
    session.freeze()
    session.call("UserPromptSubmit", prompt="another")
    assert "lastPrompt" not in session.memory()
    assert compact(session) == ""
    assert "another" not in json.dumps(session.memory())


def test_a_session_without_pins_gets_only_the_line_of_the_compaction(session):
    assert compact(session) == ""


@pytest.mark.parametrize(("audience", "is_given"), [("orchestrator", True), ("none", False)])
def test_the_audience_of_warnings_decides_only_when_it_is_none(session, pins, audience, is_given):
    put(pins, session.project, RULE)
    session.environ["ULTRAMON_AUDIENCE"] = audience
    text = session.call("SessionStart", source="compact").text
    assert (RULE in text, COMPACTED in text) == (is_given, False)


def test_a_subagent_gets_the_rules_and_no_instruction_of_the_user(session, pins):
    put(pins, session.project, RULE)
    session.call("UserPromptSubmit", prompt="Fix the parser.")
    session.tool(20_000, "a1")
    assert compact(session, "a1") == f"Rules that the user has pinned, word for word:\n1. {RULE}"


def test_pins_of_folders_around_a_project_hold_in_it(session, pins):
    put(pins, session.path, "Everywhere.")
    put(pins, session.project, "Here.")
    link = session.path / "link"
    link.symlink_to(session.project)
    session.environ["CLAUDE_PROJECT_DIR"] = str(link)
    assert compact(session).splitlines()[1:] == ["1. Everywhere.", "2. Here."]


def test_pins_of_a_session_hold_after_a_clear(session, pins):
    session.call("SessionStart", source="startup")
    put(pins, SESSION, RULE, is_session=True)
    session.call("SessionEnd", reason="clear")
    session.session_id = "next"
    session.call("SessionStart", source="clear")
    assert f"1. {RULE}" in compact(session)


@pytest.mark.parametrize("letter", ["x", "語"])
def test_all_that_is_given_back_is_bounded_and_says_what_is_cut(session, pins, letter):
    for _ in range(5):
        put(pins, session.project, letter * MAX_PIN_CHARS)
    session.call("UserPromptSubmit", prompt=letter * 10_000)
    plan(session, **{f"task {number} {letter * 60}": "pending" for number in range(100)})
    text = compact(session)
    assert MAX_RULES_BYTES * 0.9 < len(text.encode()) <= MAX_RULES_BYTES + 400
    rules, _, rest = text.partition("The user's last instruction")
    assert f" of {MAX_PIN_CHARS:,} characters)" in rules
    assert "more are cut: `ultramon host pin --list`)" in rules
    instruction, _, tasks = rest.partition("Open tasks of the plan, 100 of 100:")
    assert " of 10,000 characters)" in instruction
    assert tasks.rstrip().endswith(" more")


def test_a_long_instruction_is_kept_to_4000_characters(session):
    session.call("UserPromptSubmit", prompt="y" * 5_000)
    assert session.memory()["lastPrompt"] == {"text": "y" * 4_000, "chars": 5_000}
    assert compact(session).endswith("y\n(cut: 4,000 of 5,000 characters)")


def test_a_pinned_file_that_is_gone_is_said_and_the_others_are_given(session, pins):
    gone = session.project / "gone.md"
    gone.write_text("x")
    pins.add(Pin(str(session.project), None, str(gone)), is_session=False)
    put(pins, session.project, RULE)
    gone.unlink()
    assert compact(session).splitlines()[1:3] == [f"1. {gone}:", "cannot be read."]
    assert len(session.failures()) == 1


def test_a_file_of_pins_that_cannot_be_read_is_said(session, pins):
    with open(pins.path, "w") as file:
        file.write("{")
    assert "cannot be read: `ultramon host pin --list` says why." in compact(session)
    assert len(session.failures()) == 1


def test_explain_shows_the_pins_of_a_session(session, pins):
    put(pins, session.project, RULE)
    session.tool(20_000)

    def explained(*more):
        return program.run(
            "explain", SESSION, "--details", "--state-dir", str(session.state), *more
        ).stdout

    assert "\n  1  Never touch the `migrations` folder.\n" in explained()
    assert json.loads(explained("--json"))["pins"] == [RULE]
    session.freeze()
    assert json.loads(explained("--json"))["pins"] == []
