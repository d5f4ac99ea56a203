"""What many transcripts say together: known, lower bounds, or said to be unknown."""

import os
import shutil
import time

import pytest
from helpers.gemini_session import RECORDED as GEMINI_RUNS
from helpers.planted_transcripts import (
    OTHER,
    PROJECT,
    SESSION,
    Machine,
    boundary,
    busy_machine,
    held_beside,
    read_file,
    returned,
    used,
)
from helpers.qwen_session import NEW, plant_run
from helpers.transcript_lines import prompt

from ultramon import ContextConfig
from ultramon.prices.price_list import PriceList
from ultramon.recordings.anonymous import anonymous
from ultramon.recordings.clients import client_files, find_by_id, split_by_age
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.survey import survey
from ultramon.testing import FakeClock

NOW = 1_795_400_000.0


def surveyed(machine, **options):
    """The survey of a machine."""
    with TranscriptIndex(None) as index:
        found = list(index.summarize(client_files(machine.environ)))
    return survey(found, ContextConfig(), now=NOW, **options)


@pytest.fixture
def busy(tmp_path):
    """A machine on which agents have worked."""
    return busy_machine(tmp_path)


def test_sessions_subagents_and_compactions_are_counted(busy):
    """Each transcript once, by what it says."""
    found = surveyed(busy)
    assert found.hosts == ("claude-code", "codex")
    assert (found.sessions, found.subagents, found.transcripts) == (5, 3, 8)
    assert (found.sessions_compacted, found.subagents_compacted, found.compactions) == (2, 0, 2)
    assert found.overflows == 1


def test_sessions_of_gemini_are_counted_with_their_subagents(tmp_path):
    """A resumed session has two files and is one; it is found by its whole id too."""
    machine = Machine(tmp_path)
    for run in ("subagent", "resume", "compress"):
        chats = tmp_path / "gemini" / ".gemini" / "tmp" / run / "chats"
        shutil.copytree(GEMINI_RUNS / run / "chats", chats)
    found = surveyed(machine)
    assert (found.hosts, found.sessions, found.subagents) == (("gemini",), 3, 1)
    assert (found.compactions, found.subagents_with_text) == (2, 1)
    (path,) = find_by_id("55782342-25ad-46e0", machine.environ)
    assert os.path.basename(path) == "session-2026-11-22T12-19-55782342.jsonl"
    assert find_by_id("55782342-ffff", machine.environ) == []


def test_sessions_of_qwen_code_are_counted_with_their_subagents(tmp_path):
    """Who launched them says what they returned."""
    machine = Machine(tmp_path)
    for run in ("subagents", "compact"):
        plant_run(tmp_path / "qwen" / "projects" / run, NEW, run)
    found = surveyed(machine)
    assert (found.hosts, found.sessions, found.subagents) == (("qwen",), 2, 2)
    assert (found.compactions, found.subagents_with_text) == (1, 2)


def test_what_was_thrown_away_is_a_lower_bound(busy):
    """From the reply before to the request behind: 150,010 to 30,000, and in the rollout."""
    only_claude = [path for path in client_files(busy.environ) if "codex" not in path]
    with TranscriptIndex(None) as index:
        found = survey(index.summarize(only_claude), ContextConfig(), now=NOW)
    assert found.discarded_tokens == 150_010 - 30_000
    assert surveyed(busy).discarded_tokens == 120_010 + 151_025 - 12_000


def test_how_a_subagent_came_back_is_what_its_launcher_got(busy):
    """Empty, with a text, or not known; a subagent in two kinds of trouble counts once."""
    found = surveyed(busy)
    returns = found.subagents_empty, found.subagents_with_text, found.subagents_return_unknown
    assert returns == (1, 1, 1)
    assert (found.subagents_near_limit, found.subagents_in_trouble) == (1, 1)


def test_a_refused_session_ended_at_its_limit(busy):
    """However full its last reading was."""
    found = surveyed(busy)
    worst = {one.project for one in found.worst_sessions if one.is_near_limit}
    assert (found.sessions_near_limit, worst) == (1, {"project"})


def test_an_unknown_limit_is_no_ratio(tmp_path):
    """A report above the window of a model says that the window is another one."""
    machine = Machine(tmp_path)
    machine.write(SESSION, prompt("Hi."), used("m", 300_000))
    found = surveyed(machine)
    assert [one.peak_tokens for one in found.worst_sessions] == [300_000]
    assert [one.peak_ratio for one in found.worst_sessions] == [None]
    assert (found.sessions_near_limit, found.sessions_end_unknown) == (0, 1)


def test_after_a_compaction_without_a_reply_the_end_is_unknown(tmp_path):
    """What is left in the window was not reported yet."""
    machine = Machine(tmp_path)
    machine.write(SESSION, used("m", 196_000), boundary())
    found = surveyed(machine)
    assert (found.sessions_near_limit, found.sessions_end_unknown) == (0, 1)
    assert (found.discarded_tokens, found.unmeasured_compactions) == (0, 1)


def test_what_filled_the_windows_adds_up(busy):
    """Shares of sources and projects are of the same whole, files are a part of it."""
    found = surveyed(busy)
    assert sum(one.estimated_tokens for one in found.by_source) == found.estimated_tokens
    by_project = sum(one.estimated_tokens for one in found.by_project)
    assert by_project == pytest.approx(found.estimated_tokens, abs=20)
    assert [one.name for one in found.by_file] == [f"{PROJECT}/a.py"]
    read = next(one for one in found.by_source if one.name == "tool:Read")
    assert read.estimated_tokens == found.by_file[0].estimated_tokens > 1_000


def test_the_session_that_lost_most_work_comes_first(busy):
    """Lost subagents and refusals before compactions, compactions before fullness."""
    found = surveyed(busy, by_id=True)
    peaks = [one.peak_tokens for one in found.worst_sessions]
    assert peaks == [240_000, 150_000, 151_000, 160_000, 12_000]
    assert found.worst_sessions[1].subagents_in_trouble == 1


def test_an_id_is_shown_as_far_as_it_differs(busy):
    """Two that begin alike are distinguished, and what is shown finds one transcript."""
    found = surveyed(busy, by_id=True)
    for one in found.worst_sessions:
        assert one.id.startswith(one.replay_target)
        assert find_by_id(one.replay_target, busy.environ) == [one.path]
    shown = {one.replay_target for one in found.worst_sessions}
    assert {"11111111-2", "11111111-9"} <= shown


def test_a_copy_under_another_name_is_shown_by_its_path(tmp_path):
    """Its name holds no id by which it could be found."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION, used("m", 10_000))
    copy = path.rename(path.with_name("copy.jsonl"))
    assert surveyed(machine, by_id=True).worst_sessions[0].replay_target == str(copy)


@pytest.mark.parametrize("name", ["", "111", "../..", "a*", "11111111-2222-5"])
def test_what_is_no_id_finds_nothing(busy, name):
    """Short and odd texts are no ids."""
    assert find_by_id(name, busy.environ) == []


def test_older_sessions_are_left_out_and_counted(busy):
    """By the time of their last record."""
    one_day_later = 1_795_293_000 + 86_400
    with TranscriptIndex(None) as index:
        paths = list(client_files(busy.environ))
        found = list(index.summarize(paths))
    recent = survey(found, ContextConfig(), now=one_day_later, days=1)
    assert (recent.sessions, recent.older_transcripts) == (3, 5)
    assert all(one.host == "codex" for one in recent.worst_sessions)


def test_an_old_subagent_belongs_to_a_session_that_goes_on(busy):
    """Files are left out unread by their age, but not parts of a recent session."""
    paths = sorted(client_files(busy.environ))
    for path in paths:
        if OTHER in path or "subagents" in path:
            busy.age(path, 40)
    recent, older = split_by_age(paths, time.time() - 30 * 86_400)
    assert [path for path in older if OTHER not in path] == []
    assert sorted(recent + older) == paths


def test_an_old_session_is_read_with_a_subagent_that_goes_on(busy):
    """Its own file says how the subagent came back."""
    paths = sorted(client_files(busy.environ))
    for path in paths:
        if not path.endswith("agent-a3.jsonl"):
            busy.age(path, 40)
    recent, _ = split_by_age(paths, time.time() - 30 * 86_400)
    assert [os.path.basename(path) for path in recent] == ["agent-a3.jsonl", f"{SESSION}.jsonl"]


def test_a_projects_name_is_as_long_as_needed(tmp_path):
    """Two directories of one name are distinguished by the one above."""
    machine = Machine(tmp_path)
    for number, project in enumerate(("/a/web", "/b/web", "/c/api")):
        machine.write(f"{number}" * 32, used("m", 10_000), project=project)
    names = {one.path: one.name for one in surveyed(machine).by_project}
    assert names == {"/a/web": "a/web", "/b/web": "b/web", "/c/api": "api"}


def test_of_two_files_of_one_session_the_longer_one_counts(busy):
    """A copy is no second session."""
    before = surveyed(busy)
    copied = busy.write(OTHER, prompt("Hello."), project="/home/dev/other")
    assert surveyed(busy).sessions == before.sessions
    assert copied.exists()


def test_an_anonymous_survey_names_nothing(tmp_path):
    """No path, no project, no file, no tool of a server; shares and counts stay."""
    machine = busy_machine(tmp_path)
    call = {"type": "tool_use", "id": "x", "name": "mcp__acme_secret__ask", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": "word " * 900}
    entry = used("m3", 31_000)
    entry["message"]["content"] = [call]
    machine.write(SESSION, entry, prompt([result]), *read_file("/home/dev/shop/secret.plan", "t7"))
    known = surveyed(machine)
    hidden = anonymous(known).model_dump_json()
    assert "acme_secret" in known.model_dump_json()
    for name in ("acme", "secret", "shop", "blog", "home", str(tmp_path)):
        assert name not in hidden
    assert '"tool:other 1"' in hidden
    assert '"file 1.' in hidden
    assert '"project 1"' in hidden
    again = anonymous(known)
    assert [one.share_ratio for one in again.by_file] == [one.share_ratio for one in known.by_file]


def test_what_stands_in_requests_is_anonymous_by_its_kind(tmp_path):
    """A server with a plain name and a file of instructions are their user's, in each list."""
    machine = busy_machine(tmp_path)
    beside = held_beside("/home/dev/shop", "2026-11-21T20:28:51Z", servers=("acme",))
    machine.write(SESSION[:-1] + "9", prompt("Look."), *beside, used("m9d", 14_000))
    known = surveyed(machine)
    listed = {one.name for one in known.by_source}, {one.source for one in known.by_standing}
    for names in listed:
        assert {"mcp:acme", "memory:/home/dev/shop/CLAUDE.md", "system"} <= names
    found = anonymous(known)
    assert "acme" not in found.model_dump_json()
    for names in ({one.name for one in found.by_source}, {one.source for one in found.by_standing}):
        kinds = {name.partition(" ")[0] for name in names if name is not None}
        assert {"mcp:other", "memory:other", "system"} <= kinds


def test_an_id_that_may_be_a_name_is_numbered(tmp_path):
    """A transcript that a person renamed, or a subagent with a name: what a host drew stays."""
    machine = busy_machine(tmp_path)
    machine.write("anna-meyer", used("m7", 180_000))
    machine.write("anna-meyer", used("m8", 30_000), agent="acme-audit")
    drawn = "ses_dee184071ffedWRJMvPFJjDtqp"
    machine.write(drawn, used("m9b", 20_000))
    machine.write(drawn, used("m9c", 20_000), agent="a1e58397a453a09b2")
    known = surveyed(machine, by_id=True, prices=PriceList(clock=FakeClock(NOW)))
    assert "anna-meyer" in known.model_dump_json()
    found = anonymous(known)
    hidden = found.model_dump_json()
    for name in ("anna", "meyer", "acme", "audit"):
        assert name not in hidden
    for name in (SESSION, OTHER, drawn, "a1e58397a453a09b2"):
        assert f'"{name}"' in hidden
    sessions = (known.worst_sessions, found.worst_sessions), (
        known.dearest_sessions, found.dearest_sessions,
    )  # fmt: skip
    numbers = {
        shown.id
        for before, after in sessions
        for one, shown in zip(before, after, strict=True)
        if one.id == "anna-meyer"
    }
    assert len(numbers) == 1, "in both lists the same"
    assert next(iter(numbers)).startswith("id ")


def test_a_result_of_a_nested_subagent_is_found_with_its_own_launcher(tmp_path):
    """Any agent of the session may have launched it."""
    machine = Machine(tmp_path)
    machine.write(SESSION, used("m", 10_000))
    machine.write(SESSION, used("m", 10_000), returned("a2", []), agent="a1")
    machine.write(SESSION, used("m", 10_000), agent="a2")
    found = surveyed(machine)
    assert (found.subagents_empty, found.subagents_return_unknown) == (1, 1)
