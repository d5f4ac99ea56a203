"""`ultramon continue` and `ultramon stop`: what a fresh session is given, and who is asked."""

import json
import os
import subprocess

import pytest
from helpers.hooked_session import HookedSession, tokens_at
from helpers.program import PROGRAM, environment

from ultramon.backends.local.state_files import StateDirectory
from ultramon.system.processes import MachineIdentity

GOAL = "Port every test of the parser to pytest.\nKeep the names."
LAST = "Now the error messages."


@pytest.fixture
def session(tmp_path):
    """A session that was given two prompts, has open tasks and changed files."""
    found = HookedSession(tmp_path)
    git = ["git", "-C", str(found.project)]
    subprocess.run([*git, "init", "-q"], check=True)
    (found.project / "parser.py").write_text("x = 1\n")
    for number, text in enumerate((GOAL, "<command-name>/cost</command-name>", LAST)):
        found.write(user_line(found, number, text))
        found.tool(tokens_at(30 - number))
    found.reply(tokens_at(20), text="The parser is half ported.")
    change(found, tasks=[task("read"), task("errors", "in_progress"), task("docs", "pending")])
    return found


def task(name, status="done"):
    return {"name": name, "status": status, "result": None}


def user_line(session, number, text):
    return {
        "type": "user",
        "uuid": f"prompt-{number}",
        "timestamp": "2026-11-26T10:00:00.000Z",
        "sessionId": session.session_id,
        "message": {"role": "user", "content": text},
    }


def change(session, agent=None, **values):
    """Store values in a state, as its owner would."""
    directory = StateDirectory(str(session.state))
    record = session.record(agent)
    for name, value in values.items():
        setattr(record, name, value)
    record.seq += 1
    directory.replace(record, durable=False)


def run(session, *arguments, cwd=None):
    done = subprocess.run(
        [PROGRAM, *arguments, "--state-dir", str(session.state)],
        capture_output=True,
        text=True,
        cwd=cwd or session.project,
        env=environment(HOME=str(session.home)),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_first_message_has_all_that_a_successor_needs(session):
    """Goal, last instruction, rules and tasks word for word; words of the agent are quoted."""
    code, _, errors = run(session, "host", "pin", "Never  touch the schema.")
    assert code == 0, errors
    code, text, errors = run(session, "continue", "sess", "--text")
    assert code == 0, errors
    assert text.startswith(f"# Goal\n{GOAL}\n\nRules that the user has pinned")
    for part in (
        "1. Never  touch the schema.\n",
        "This conversation continues session session, which stays as it is.",
        f"## What the user wrote last\n> {LAST}\n",
        "## Open tasks (2)\n- errors (in progress)\n- docs\n",
        "## Changed files (1)\n- parser.py\n",
        "> The parser is half ported.\n",
    ):
        assert part in text, part
    assert "/cost" not in text


def test_without_a_terminal_the_command_is_printed(session):
    """One line for a shell, which asks for the text again; the session stays as it is."""
    before = session.record().to_json()
    code, line, told = run(session, "continue")
    assert code == 0, told
    asked = f"ultramon continue session --state-dir {session.state} --text"
    assert line == f'cd {session.project} && text=$({asked}) && claude "$text"\n'
    assert "took the goal, the last instruction, 2 open tasks, the last words, 1 changed f" in told
    assert "a fresh window begins with about " in told
    assert session.record().to_json() == before


def test_a_shell_runs_the_printed_command(session, tmp_path):
    """The host gets the whole text as one argument, in the folder of the session."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text(
        f'#!/bin/sh\npwd > {tmp_path}/cwd\nprintf %s "$1" > {tmp_path}/text\n'
    )
    (programs / "claude").chmod(0o755)
    (programs / "ultramon").symlink_to(PROGRAM)
    _, line, _ = run(session, "continue")
    environ = environment(PATH=f"{programs}:{environment()['PATH']}", HOME=str(session.home))
    subprocess.run(["/bin/sh", "-c", line], env=environ, check=True, cwd="/")
    assert (tmp_path / "cwd").read_text().strip() == str(session.project)
    assert (tmp_path / "text").read_text() == run(session, "continue", "--text")[1].rstrip("\n")
    # One whose text cannot be had begins nothing.
    (tmp_path / "text").unlink()
    lost = line.replace("continue session", "continue nobody")
    assert subprocess.run(["/bin/sh", "-c", lost], env=environ, check=False).returncode != 0
    assert not (tmp_path / "text").exists()


def test_a_subagent_stands_for_its_session(session):
    session.tool(tokens_at(40), agent="a1")
    code, out, _ = run(session, "continue", "session.a1", "--json")
    assert (code, json.loads(out)["agentId"]) == (0, "session")


def test_what_cannot_be_continued_is_said(session, tmp_path):
    """No session of this folder, another machine's, and one that no host knows."""
    code, _, told = run(session, "continue", cwd=tmp_path)
    assert (code, "no session has worked in" in told) == (1, True)
    change(session, hostname=MachineIdentity("elsewhere", "b").hostname)
    code, _, told = run(session, "continue", "session")
    assert (code, "ran on elsewhere: continue it there" in told) == (1, True)
    change(session, hostname="", host="sdk")
    code, _, told = run(session, "continue", "session")
    assert (code, "is no session of a coding agent" in told) == (1, True)


def test_an_agent_is_asked_from_another_terminal_to_hand_over(session):
    """It reads that with its next call, once; one that has ended cannot be asked."""
    code, _, told = run(session, "stop", "session")
    assert (code, "--hand-over" in told) == (2, True)
    code, out, told = run(session, "stop", "sess", "--hand-over")
    assert (code, out.startswith("asked ")) == (0, True), told
    assert "hand your work over now" in session.tool(tokens_at(50)).text
    assert "hand your work over now" not in session.tool(tokens_at(50)).text
    session.call("SessionEnd", reason="other")
    code, _, told = run(session, "stop", "session", "--hand-over")
    assert (code, "has ended" in told) == (1, True)


def test_an_agent_of_a_program_that_names_itself_is_refused(session):
    """It has a parent, and no other session than itself."""
    session.tool(tokens_at(40), agent="a1")
    change(session, agent="a1", session_id="session.a1", host="sdk")
    code, _, told = run(session, "continue", "session.a1")
    assert (code, "is no session of a coding agent" in told) == (1, True), told


def test_states_that_name_each_other_as_their_session_are_refused(session):
    """As only a damaged or made-up state does; the search ends all the same."""
    session.tool(tokens_at(40), agent="a1")
    change(session, session_id="session.a1", parent_id="session.a1")
    code, _, told = run(session, "continue", "session")
    assert (code, "is no session of a coding agent" in told) == (1, True), told


def test_texts_of_the_host_are_no_words_of_the_user(session):
    """Neither an interruption nor a line that the host wrote in the user's place."""
    session.write(user_line(session, 8, "[Request interrupted by user for tool use]"))
    session.write(
        user_line(session, 9, "Caveat: what follows was run by a hook.") | {"isMeta": True}
    )
    session.reply(tokens_at(19), text="I wait.")
    _, text, _ = run(session, "continue", "--text")
    assert f"## What the user wrote last\n> {LAST}\n" in text
    assert "interrupted" not in text
    assert "Caveat" not in text


def test_a_person_may_begin_with_a_tag_of_a_page(tmp_path):
    session = HookedSession(tmp_path)
    session.write(user_line(session, 1, "<Footer/> renders twice, mend it."))
    session.tool(tokens_at(40))
    _, text, _ = run(session, "continue", "--text")
    assert text.startswith("# Goal\n<Footer/> renders twice, mend it.\n")


def test_a_session_that_continues_another_one_keeps_the_users_own_goal(session, tmp_path):
    """Its first message holds more than that; after two steps as after one."""
    run(session, "host", "pin", "Never touch the schema.")
    _, text, _ = run(session, "continue", "--text")
    (tmp_path / "second").mkdir()
    second = HookedSession(tmp_path / "second")
    second.write(user_line(second, 1, text))
    second.tool(tokens_at(40))
    _, again, _ = run(second, "continue", "--text")
    assert again.startswith(f"# Goal\n{GOAL}\n\n## Where the work stands\n")
    assert (again.count("# Goal"), again.count("Where the work stands")) == (1, 1)
    assert "What the user wrote last" not in again


def test_the_message_is_an_argument_however_much_is_left(session):
    """Linux takes 128 KiB."""
    name = "検査" * 250
    change(session, tasks=[task(f"{number} {name}", "pending") for number in range(250)])
    code, text, told = run(session, "continue", "--text")
    assert code == 0, told
    assert 50_000 < len(text.encode()) <= 100_000
    assert "## Open tasks (250)\n- 0 検査" in text


def test_a_session_without_words_is_not_continued(tmp_path):
    """And one whose transcript is gone says that it has no goal."""
    session = HookedSession(tmp_path)
    session.tool(tokens_at(40))
    code, _, told = run(session, "continue")
    assert (code, "there is nothing to continue" in told) == (1, True), told
    change(session, tasks=[task("docs", "pending")])
    _, _, told = run(session, "continue")
    assert "took no goal, as its transcript has none, 1 open task" in told


def test_an_agent_that_would_not_read_it_is_not_asked(session):
    """An installation that tells the orchestrator alone has no reader for it."""
    session.freeze(audience="orchestrator")
    code, out, told = run(session, "stop", "session", "--hand-over", "--json")
    assert (code, out) == (1, "")
    assert "is installed with --audience orchestrator" in told


def test_the_first_message_controls_no_terminal(session):
    """It holds what a model wrote; a shell that asks for it is given each character."""
    session.reply(tokens_at(18), text="Done.\x1b]0;owned\x07")
    _, text, _ = run(session, "continue", "--text")
    assert "owned" in text
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            [PROGRAM, "continue", "--text", "--state-dir", str(session.state)],
            stdout=theirs,
            cwd=session.project,
            env=environment(HOME=str(session.home)),
            check=True,
        )
        shown = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"> Done.\\x1b]0;owned\\x07\r\n" in shown
    assert shown.startswith(b"# Goal\r\nPort every test")
    assert b"\x1b" not in shown
