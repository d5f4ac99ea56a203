import json
import subprocess
import sys

import pytest
from helpers import ROOT
from helpers.program import CAPTURES, PROGRAM, environment, run
from helpers.transcript_lines import line, prompt, reply

from ultramon.cli.views.replay_chart import plot
from ultramon.recordings.recordings import find_recordings
from ultramon.recordings.replay import replay

COMPACTED = CAPTURES / "claude-code-2.1.330" / "transcript_r3_main.jsonl"
SESSION = ROOT / "tests" / "data" / "replay" / "session.jsonl"


def usage(tokens, output=0):
    """What a provider counted."""
    return {"input_tokens": 10, "cache_read_input_tokens": tokens - 10, "output_tokens": output}


def test_a_disabled_ultramon_still_replays():
    """ULTRAMON_DISABLED silences agents, not the tool that a person calls."""
    done = run("replay", "--json", COMPACTED, ULTRAMON_DISABLED="1")
    assert json.loads(done.stdout)["agents"][0]["crossingCount"] == 1


def test_a_replay_leaves_no_state(tmp_path):
    """Nothing is written where agents keep their states."""
    run("replay", CAPTURES, ULTRAMON_STATE_DIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_screen_tells_the_story_of_a_session():
    """Facts, chart, rungs and compactions in order, and what filled the window."""
    done = run("replay", COMPACTED, COLUMNS="100")
    text = done.stdout
    assert "31 records, 5 reports, 2026-11-21 20:28:51 to 2026-11-21 20:28:53 UTC" in text
    assert "model claude-sonnet-4-5, limit 200,000 tokens (model)" in text
    assert "peak 196,014 tokens reported, 98 % of the limit; 2 compactions" in text
    assert text.count("▼") == 2
    assert "critical 75%" in text
    events = [line.split()[1:3] for line in text.splitlines() if line.startswith("20:28:5")]
    assert events == [["compaction", "2,760"], ["critical", "196,014"], ["compaction", "2,761"]]
    assert "not recorded" in text
    assert "▼" not in run("replay", COMPACTED, "--no-plot").stdout


def test_the_path_of_a_recording_begins_at_the_home():
    """It is short, and a picture of the screen names no user."""
    done = run("replay", COMPACTED, HOME=str(ROOT), COLUMNS="100")
    assert f"claude-code, ~/{COMPACTED.relative_to(ROOT)}\n" in done.stdout


@pytest.mark.parametrize("columns", [20, 30, 50, 70, 100, 240])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_chart_fits_the_terminal(columns, encoding):
    """No line of the chart is wider than the terminal, in blocks or in ASCII."""
    shown = replay(find_recordings([str(COMPACTED)]).recordings[0])
    lines = [text.plain for text in plot(shown, columns, ascii_only=encoding == "ascii")]
    assert len(lines) == 14
    for one in lines:
        one.encode(encoding)
        assert len(one) <= columns
    assert plot(shown, 16, ascii_only=True) == []


def test_the_json_of_a_replay_is_camel_case_ascii():
    """Names are stable and like those of the state file; times are RFC 3339."""
    done = run("replay", "--json", COMPACTED, SESSION)
    document = json.loads(done.stdout)
    assert done.stdout.isascii()
    assert set(document) == {"agents", "skipped"}
    first, second = document["agents"]
    assert {"contextLimit", "peakTokens", "bySource", "brokenLines", "epochs"} <= set(first)
    assert first["crossings"][0]["at"] == "2026-11-21T20:28:52.841000Z"
    assert second["kind"] == "json-lines"


@pytest.fixture(scope="module")
def long_transcripts(tmp_path_factory):
    """Sessions of 10 and of 100 MB, with a compaction each 110 turns."""
    folder = tmp_path_factory.mktemp("long")
    content = "def f(x): return x + 1\n" * 100
    paths = []
    for megabytes in (10, 100):
        path = folder / f"{megabytes}.jsonl"
        paths.append(path)
        with open(path, "wb") as file:
            number, tokens = 0, 20_000
            while file.tell() < megabytes * 1_000_000:
                call = [{"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {}}]
                result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": content}
                file.write(line(reply(f"m{number}", usage(tokens, 50), call)))
                file.write(line(prompt([result])))
                number, tokens = number + 1, tokens + 1_500
                if tokens > 185_000:
                    metadata = {"trigger": "auto", "preTokens": tokens, "postTokens": 3_000}
                    file.write(
                        line(
                            {
                                "type": "system",
                                "subtype": "compact_boundary",
                                "compactMetadata": metadata,
                                "isSidechain": False,
                                "sessionId": "session",
                            }
                        )
                    )
                    tokens = 20_000
    return paths


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(long_transcripts):
    """Ten times the transcript takes less than 20 MB more at its peak."""
    peaks_kb = []
    for path in long_transcripts:
        code = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, PROGRAM, "replay", str(path)],
            capture_output=True,
            encoding="utf-8",
            env=environment(),
            check=True,
        )
        peaks_kb.append(int(done.stdout))
    assert peaks_kb[1] - peaks_kb[0] < 20_000
