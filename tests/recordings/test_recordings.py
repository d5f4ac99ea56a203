import json
import os
import shutil

import pytest
from helpers import ROOT
from helpers.program import CAPTURES, run
from helpers.recordings import only, timeline, written

from ultramon.recordings.recordings import Recording, find_recordings, read_records
from ultramon.recordings.replay import replay

CLAUDE = CAPTURES / "claude-code-2.1.330"
SESSION = ROOT / "tests" / "data" / "replay" / "session.jsonl"


def test_a_text_fills_the_window_piece_by_piece(tmp_path):
    """A text is read in pieces, so that a rung is reached inside it; nothing is lost between."""
    path = tmp_path / "long.txt"
    path.write_text("naïve words, " * 20_000)
    shown = timeline(path, context_limit_tokens=100_000)
    assert (shown.kind, shown.id, shown.peak_source) == ("text", "long.txt", "estimated")
    assert list(shown.by_source) == ["file:long.txt"]
    assert shown.readings == 18
    texts = "".join(record.text for record in read_records(only(path)))
    assert texts == path.read_text()


def test_a_directory_of_text_is_read_by_one_agent(tmp_path):
    """Its files come in order, by name; hidden ones, links and binary ones do not."""
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "b.txt").write_text("second " * 10)
    (folder / "a.txt").write_text("first " * 10)
    (folder / "inner" / "c.txt").write_text("third " * 10)
    (folder / ".hidden").write_text("no")
    (folder / "link.txt").symlink_to(folder / "a.txt")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes(b"na\xefve")
    (folder / "nothing.txt").touch()
    os.mkfifo(folder / "pipe")
    found = find_recordings([str(folder)])
    (recording,) = found.recordings
    assert (recording.id, recording.kind) == ("project", "text")
    assert [os.path.basename(path) for path in recording.paths] == ["a.txt", "b.txt", "c.txt"]
    assert {os.path.basename(one.path): one.reason for one in found.skipped} == {
        "picture.png": "not text",
        "latin.txt": "not UTF-8 text",
        "nothing.txt": "empty",
        "pipe": "not a regular file",
    }
    assert set(replay(recording).by_source) == {"file:a.txt", "file:b.txt", "file:c.txt"}


def test_many_files_are_told_apart_by_their_kind(tmp_path):
    """With more than two dozen files the sources are suffixes."""
    for number in range(30):
        (tmp_path / f"m{number}.py").write_text("pass\n" * 50)
    (tmp_path / "Makefile").write_text("all:\n" * 5)
    assert set(timeline(tmp_path).by_source) == {"file:.py", "file:no suffix"}


def test_a_directory_of_recordings_gives_each_of_them():
    """Sorted by path; what describes them is no recording."""
    found = find_recordings([str(CAPTURES)])
    names = [os.path.basename(one.paths[0]) for one in found.recordings]
    rollouts = ["rollout_c1_user.jsonl", "rollout_compact.jsonl", "rollout_overflow.jsonl"]
    assert names == [*sorted(names[:-3]), *rollouts]
    assert len(names) == 9
    assert {one.reason for one in found.skipped} == {"text beside recordings: name it to replay it"}


def test_other_json_lines_are_never_guessed_at(tmp_path):
    """Logs of hooks and status lines are skipped, whatever they are called, and said why."""
    hook = {"n": 0, "run": "r2", "stdin": {"session_id": "s", "hook_event_name": "Stop"}}
    written(tmp_path, "hooks.jsonl", hook, hook)
    written(tmp_path, "status.log", {"stdin": {}, "env": {}}, {"stdin": {}, "env": {}})
    written(tmp_path, "broken.jsonl", b"not JSON\n")
    shutil.copy(SESSION, tmp_path)
    done = run("replay", tmp_path)
    assert done.returncode == 0
    for name, keys in (("hooks.jsonl", "n, run, stdin"), ("status.log", "stdin, env")):
        assert f"{name}: JSON lines of an unknown kind (keys of the first: {keys})" in done.stderr
    assert "broken.jsonl: JSON lines of an unknown kind (keys of the first: none)" in done.stderr


def test_nothing_to_replay_is_a_failure(tmp_path):
    """A path with nothing to read says why and ends with 1."""
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    done = run("replay", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "x.jsonl: JSON lines of an unknown kind" in done.stderr
    assert "Error: nothing to replay" in done.stderr


def test_the_subagents_of_a_session_come_along(tmp_path):
    """Naming the session's file replays its subagents too, each once, as agents of their own."""
    shutil.copy(CLAUDE / "transcript_r1_main.jsonl", tmp_path / "6f.jsonl")
    folder = tmp_path / "6f" / "subagents"
    folder.mkdir(parents=True)
    shutil.copy(CLAUDE / "transcript_r1_subagent.jsonl", folder / "agent-a1.jsonl")
    (folder / "agent-a1.meta.json").write_text("{}")
    session = "6f6361b3-1922-4905-86fa-32179dd59161"
    expected = [session, f"{session}.a1e58397a453a09b2"]
    for paths in ([tmp_path / "6f.jsonl"], [tmp_path / "6f.jsonl", tmp_path], [tmp_path]):
        found = find_recordings(map(str, paths))
        assert [one.id for one in found.recordings] == expected


def test_a_long_first_line_is_still_recognised(tmp_path):
    """A text of more than 64 kB on the first line is read as what it is."""
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": "word " * 30_000}) + "\n")
    assert timeline(path).records == 1


@pytest.mark.parametrize("kind", ["text", "json-lines"])
def test_a_file_that_vanished_is_an_error_of_the_system(tmp_path, kind):
    """What was found and cannot be read any more raises the system's own error."""
    with pytest.raises(FileNotFoundError):
        replay(Recording("x", kind, (str(tmp_path / "gone"),)))
