"""A transcript that grows is read on where its reader stopped; clients' files are found."""

import json

import pytest
from helpers import DATA
from helpers.gemini_session import RECORDED as GEMINI_RUNS
from helpers.program import CAPTURES

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.transcripts.jsonl import decode_object
from ultramon.recordings.recordings import host_of

QWEN_FILES = (DATA / "hooks").glob("qwen-*/*/*-*.jsonl")
GEMINI_FILES = GEMINI_RUNS.glob("*/chats/**/*.jsonl")
RECORDED = sorted([*CAPTURES.glob("*/*.jsonl"), *GEMINI_FILES, *QWEN_FILES])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_reader_goes_on_with_the_memory_of_another(path):
    """Cut behind any line, a recording gives the records that it gives as a whole."""
    host, lines = host_of(path.read_bytes()), path.read_bytes().splitlines()
    whole = list(host.transcripts.read_transcript(lines))
    for cut in range(len(lines) + 1):
        reader = host.transcripts.open_reader()
        records = [one for line in lines[:cut] for one in reader.read(decode_object(line))]
        reader = host.transcripts.open_reader(json.loads(json.dumps(reader.memory())))
        for line in lines[cut:]:
            records.extend(reader.read(decode_object(line)))
        assert [*records, *reader.held] == whole, cut


@pytest.mark.parametrize("host", [CLAUDE_CODE, CODEX, GEMINI, QWEN], ids=lambda host: host.name)
def test_what_is_no_memory_is_refused(host):
    """A caller then reads the transcript as a whole."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        host.transcripts.open_reader({"tools": {}})


def planted(root, *names):
    """Empty files below a root."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_the_transcripts_of_claude_code_are_below_its_projects(tmp_path):
    """Sessions and subagents, in whatever directory the client was set to use."""
    names = ["projects/-a/s1.jsonl", "projects/-a/s1/subagents/agent-x.jsonl"]
    planted(tmp_path, *names, "projects/-a/s1/subagents/agent-x.meta.json", "history.jsonl")
    planted(tmp_path, "moved/s2.jsonl")
    (tmp_path / "projects" / "link.jsonl").symlink_to(tmp_path / "moved" / "s2.jsonl")
    (tmp_path / "projects" / "-b").symlink_to(tmp_path / "moved")
    found = CLAUDE_CODE.transcripts.transcript_files({"CLAUDE_CONFIG_DIR": str(tmp_path)})
    linked = "moved/s2.jsonl"  # once, by whichever link it is found
    assert sorted(found) == [str(tmp_path / name) for name in [linked, *names]]


def test_the_transcripts_of_codex_are_below_its_sessions(tmp_path):
    """A rollout lies in the folder of its day."""
    planted(tmp_path, "sessions/2026/11/21/rollout-x.jsonl", "history.jsonl")
    found = CODEX.transcripts.transcript_files({"CODEX_HOME": str(tmp_path)})
    assert list(found) == [str(tmp_path / "sessions/2026/11/21/rollout-x.jsonl")]


def test_the_session_files_of_gemini_are_below_its_projects(tmp_path):
    """Sessions and subagents; what else the client keeps for a project is none."""
    chats = ".gemini/tmp/project/chats"
    names = [f"{chats}/session-2026-11-22T12-19-55782342.jsonl", f"{chats}/55782342-25ad/a.jsonl"]
    planted(tmp_path, *names, ".gemini/tmp/project/logs/a.jsonl")
    found = GEMINI.transcripts.transcript_files({"GEMINI_CLI_HOME": str(tmp_path)})
    assert sorted(found) == sorted(str(tmp_path / name) for name in names)


def test_the_transcripts_of_qwen_code_are_below_its_projects(tmp_path):
    """Sessions and subagents lie in folders beside each other."""
    names = ["projects/-a/chats/s1.jsonl", "projects/-a/subagents/s1/agent-x.jsonl"]
    planted(tmp_path, *names, "projects/-a/subagents/s1/agent-x.meta.json", "usage_record.jsonl")
    for variable in ("QWEN_HOME", "QWEN_RUNTIME_DIR"):
        assert list(QWEN.transcripts.transcript_files({variable: str(tmp_path)})) == [
            str(tmp_path / name) for name in names
        ]


def test_a_client_that_was_never_used_has_no_transcripts(tmp_path):
    """A missing directory is no error."""
    assert list(CODEX.transcripts.transcript_files({"CODEX_HOME": str(tmp_path / "none")})) == []
