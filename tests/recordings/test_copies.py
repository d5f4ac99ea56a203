"""What happened once counts once, in whatever files it stands."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers import DATA
from helpers.opencode_session import plant
from helpers.planted_transcripts import OTHER, SESSION, Machine, used
from helpers.program import run
from helpers.transcript_lines import line, prompt

from ultramon.installed import install_command
from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable

ALL_DAYS = ("--days", "3000")
FORK = DATA / "public_reports" / "A1-codex-fork-copies-history" / "home" / ".codex"
PARENT_ID, FORK_ID = "01a20330-66a9-7962-92ee-9efb74045270", "01a20340-66a9-7962-92ee-9efb74045271"


def report(machine, *options):
    done = run("report", "--json", *(options or ALL_DAYS), **machine.environ)
    return json.loads(done.stdout), done.stderr


def rollout(machine, name):
    (path,) = (machine.root / "codex").rglob(f"*{name}.jsonl")
    return path


@pytest.fixture
def forked(tmp_path):
    """A machine with a Codex thread that was compacted, and a fork of it."""
    shutil.copytree(FORK, tmp_path / "codex")
    for path in (tmp_path / "codex").rglob("*.jsonl"):
        path.chmod(0o600)
    return Machine(tmp_path)


def counted(found):
    return found["compactions"], found["discardedTokens"]


def test_a_fork_says_that_it_is_one(forked):
    """What was left out is named, and the second report counts the same from its index."""
    for _ in range(2):
        found, told = report(forked)
        assert counted(found) == (1, 150_200)
        assert found["copiedTranscripts"] == 1
        assert "history copied into 1 transcript is counted once" in told


def test_a_fork_whose_times_were_rewritten_counts_once(forked):
    """It is known by its counts, not by its times."""
    path = rollout(forked, FORK_ID)
    path.write_text(path.read_text().replace("2026-11-25T08:", "2026-11-25T09:"))
    assert counted(report(forked)[0]) == (1, 150_200)


def test_a_fork_of_a_thread_that_is_too_old_counts_its_own(forked):
    """What the thread went through happened before the days of the report."""
    forked.age(rollout(forked, PARENT_ID), 400)
    days = ("--days", "300")
    found, _ = report(forked, *days)
    assert (found["sessions"], found["olderTranscripts"], counted(found)) == (1, 1, (0, 0))


def test_two_forks_of_a_thread_that_is_gone_count_it_once(forked):
    """The first of them is the only owner left."""
    rollout(forked, PARENT_ID).unlink()
    path = rollout(forked, FORK_ID)
    second = FORK_ID[:-1] + "2"
    copy = path.with_name(path.name.replace(FORK_ID, second))
    copy.write_text(path.read_text().replace(FORK_ID, second))
    assert counted(report(forked)[0]) == (1, 150_200)


def test_a_session_that_goes_on_behind_a_copy_counts_what_is_its_own(forked):
    """The window begins with what was copied: what is thrown away later is all of it."""
    path = rollout(forked, FORK_ID)
    lines = path.read_text().splitlines()
    behind = [json.dumps({"type": "compacted", "payload": {"message": "s"}})]
    usage = {"input_tokens": 6_000, "cached_input_tokens": 0, "output_tokens": 10}
    record = {"response_id": "resp_own", "thread_id": FORK_ID, "usage": usage}
    behind.append(json.dumps({"type": "token_usage_record", "payload": record}))
    path.write_text("\n".join([*lines, *behind]) + "\n")
    assert counted(report(forked)[0]) == (2, 150_200 + 56_200 - 6_000)


def test_a_branch_of_claude_code_counts_once(tmp_path):
    """Its replies have the ids of the first session's, whatever sessions and times are written."""
    machine = Machine(tmp_path)
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b1"}
    history = [used("msg_1", 100_000), used("msg_2", 160_000), boundary, used("msg_3", 20_000)]
    machine.write(SESSION, *history)
    later = [one | {"timestamp": "2026-11-22T20:28:51Z"} for one in history]
    own = used("msg_4", 30_000, at="2026-11-22T20:29:51Z")
    machine.write(OTHER, *later, own)
    found, _ = report(machine)
    assert (found["sessions"], *counted(found)) == (2, 1, 140_010)


def test_ids_that_a_program_gives_itself_are_no_copies(tmp_path):
    """Two sessions whose first reply is called the same, and counted otherwise, are two."""
    machine = Machine(tmp_path)
    for session, tokens in ((SESSION, 100_000), (OTHER, 110_000)):
        machine.write(session, used("chatcmpl-1", tokens), used("chatcmpl-2", 20_000))
    found, _ = report(machine)
    assert (found["compactions"], found["copiedTranscripts"]) == (2, 0)


def test_a_compaction_that_is_written_twice_is_one(tmp_path):
    """A resumed session may write lines again that are in the file."""
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b1"}
    history = [used("msg_1", 160_000), boundary, used("msg_2", 20_000)]
    machine = Machine(tmp_path)
    machine.write(SESSION, *history, *history)
    assert report(machine)[0]["compactions"] == 1


def test_replies_behind_a_compaction_whose_clock_went_back_are_read(tmp_path):
    """The order of the file says that they follow it."""
    machine = Machine(tmp_path)
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "b1"}
    boundary["timestamp"] = "2026-11-21T20:40:00Z"
    early = "2026-11-21T20:00:00Z"
    asked = prompt("go on", uuid="u1", parentUuid="b1", timestamp=early)
    machine.write(SESSION, used("msg_1", 160_000), boundary, asked, used("msg_2", 20_000, at=early))
    found, _ = report(machine)
    assert counted(found) == (1, 140_010)
    assert found["unmeasuredCompactions"] == 0


def test_a_subagents_tokens_are_not_its_sessions(tmp_path):
    """What a subagent lost stands beside what its session lost."""
    machine = Machine(tmp_path)
    asked = prompt("Mend the orders.", timestamp="2026-11-21T20:20:00Z")
    machine.write(SESSION, asked, used("msg_1", 20_000))
    machine.write(SESSION, used("msg_2", 160_000), used("msg_3", 20_000), agent="x")
    (session,) = report(machine)[0]["worstSessions"]
    assert (session["compactions"], session["discardedTokens"]) == (0, 0)
    assert (session["subagentCompactions"], session["subagentDiscardedTokens"]) == (1, 140_010)
    assert session["firstPrompt"] == "Mend the orders."


# --- packed, linked and unknown files


def test_a_transcript_packed_with_gzip_is_read(tmp_path):
    """As a person packs what is old."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION, used("msg_1", 20_000))
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    found, told = report(machine)
    assert (found["sessions"], found["unreadable"], told) == (1, [], "")
    packed.write_bytes(packed.read_bytes()[:40])
    (one,) = report(machine)[0]["unreadable"]
    assert one["path"] == str(packed)


def test_without_its_library_a_packed_rollout_is_named_with_the_cure(tmp_path, monkeypatch):
    """A gap is never silent."""
    if sys.version_info >= (3, 14):
        pytest.skip("Zstandard comes with Python")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    case = DATA / "public_reports" / "E1-codex-compressed-rollout" / "home"
    (path,) = case.rglob("*.zst")
    with TranscriptIndex(None) as index:
        (found,) = index.summarize([str(path)])
    assert isinstance(found, Unreadable)
    assert install_command("zstd") in found.reason


def test_a_form_that_is_not_known_is_named(tmp_path):
    """A machine on which there is something is not one without transcripts."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION)
    path.write_bytes(line({"id": "of another form"}))
    empty = path.with_name("empty.jsonl")
    empty.touch()
    (path.parent / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    found, told = report(machine)
    reasons = {os.path.basename(one["path"]): one["reason"] for one in found["unreadable"]}
    assert reasons == {
        "gone.jsonl": "a link that leads nowhere",
        "empty.jsonl": "empty",
        path.name: "of a form that ultramon does not know",
    }
    assert "no transcripts" not in told


def test_a_gemini_file_without_its_header_is_read(tmp_path):
    """The name of the file is all that says whose it is."""
    path = tmp_path / "session-2026-11-25T07-00-abcd1234.jsonl"
    lines = [
        {"id": "1", "timestamp": "2026-11-25T07:00:00Z", "type": "user", "content": "go"},
        {"id": "2", "timestamp": "2026-11-25T07:01:00Z", "type": "gemini", "content": "ok",
         "tokens": {"input": 9_000, "output": 10, "total": 9_010}},
    ]  # fmt: skip
    path.write_bytes(b"".join(map(line, lines)))
    with TranscriptIndex(None) as index:
        (found,) = index.summarize([str(path)])
    assert isinstance(found, Summarized)
    assert (found.summary.host, found.summary.session_id) == ("gemini", Path(path).stem)
    assert found.summary.peak_tokens == 9_000


def test_a_fork_of_opencode_counts_once(tmp_path):
    """Its messages have new ids, and the times of those that they were copied from."""
    machine = Machine(tmp_path)
    plant(tmp_path / "opencode" / "opencode.db", "fork")
    machine.environ["XDG_DATA_HOME"] = str(tmp_path)
    for _ in range(2):
        found, _ = report(machine)
        (spent,) = (one["spent"]["inputTokens"] for one in found["byDay"])
        assert spent == 20_000 + 21_000 + 22_000
        assert found["copiedTranscripts"] == 1
