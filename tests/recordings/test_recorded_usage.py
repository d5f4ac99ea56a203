"""What transcripts cost in tokens: against an independent count, and case by case."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers.planted_transcripts import SESSION, Machine, reply, used
from helpers.recount import BY_HOST
from helpers.transcript_lines import prompt

from ultramon.context.token_usage import TokenUsage
from ultramon.recordings.index import Summarized, TranscriptIndex
from ultramon.recordings.reply_keys import COMPACTION
from ultramon.recordings.summary import MOST_WAIT_SECONDS
from ultramon.recordings.usage import (
    MAX_PARTS,
    MAYBE_READ_AGAIN,
    PLAN_HIT,
    READ_AGAIN,
    RESTART,
    SPENT,
    UsageSums,
    day_of,
    parts_of,
)

DATA = Path(__file__).parent.parent / "data"
NO_TRANSCRIPT = ("hooks.jsonl", "hook_sequence", "statusline", "subagent_ends")
FILES = [
    path
    for folder in ("captures", "copilot", "hooks")
    for path in sorted((DATA / folder).rglob("*.jsonl"))
    if not path.name.startswith(NO_TRANSCRIPT) and path.name != NO_TRANSCRIPT[0]
]


def summary_of(path):
    with TranscriptIndex(None) as index:
        found = list(index.summarize([str(path)]))
    assert len(found) == 1, path
    assert isinstance(found[0], Summarized), found
    return found[0].summary


def usage_by_model(summary, kind=SPENT):
    sums = {}
    for part in parts_of(summary.usage):
        if part.kind == kind:
            sums[part.model] = sums.get(part.model, TokenUsage()).plus(part.usage)
    return {model: tuple(usage) for model, usage in sums.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
def test_recorded_transcripts_cost_what_an_independent_count_says(path):
    """Input outside of caches, reads, both kinds of writes and output, by model."""
    summary = summary_of(path)
    assert usage_by_model(summary) == BY_HOST[summary.host](path)


def test_the_recordings_are_of_every_host():
    """No host passes because none of its files was counted."""
    hosts = [summary_of(path).host for path in FILES]
    assert set(hosts) == set(BY_HOST)
    assert len(FILES) >= 20


def total(summary, kind=SPENT):
    found = TokenUsage()
    for part in parts_of(summary.usage):
        if part.kind == kind:
            found = found.plus(part.usage)
    return found


def count(summary, kind):
    return sum(part.requests for part in parts_of(summary.usage) if part.kind == kind)


def planted(tmp_path, *entries, **options):
    machine = Machine(tmp_path)
    machine.write(SESSION, *entries, **options)
    return summary_of(next(machine.projects.rglob("*.jsonl")))


def replied(name, **usage):
    return reply(name, usage, [{"type": "text", "text": "Done."}])


def test_a_streamed_reply_counts_once_with_its_last_numbers(tmp_path):
    """Also when a tool's result stands between its lines, where the window takes no correction."""
    result = prompt([{"type": "tool_result", "tool_use_id": "t", "content": "word " * 50}])
    found = planted(
        tmp_path,
        replied("m1", input_tokens=1_000, output_tokens=1),
        replied("m1", input_tokens=1_000, output_tokens=7),
        result,
        replied("m1", input_tokens=1_000, output_tokens=40),
        replied("m2", input_tokens=1_200, output_tokens=5),
    )
    assert total(found) == TokenUsage(2_200, 0, 0, 0, 45)
    assert count(found, SPENT) == 2


def test_writes_for_an_hour_are_kept_apart(tmp_path):
    """The client states the split beside the sum."""
    split = {"ephemeral_1h_input_tokens": 300, "ephemeral_5m_input_tokens": 600}
    found = planted(
        tmp_path,
        replied(
            "m1",
            input_tokens=10,
            cache_read_input_tokens=5_000,
            cache_creation_input_tokens=900,
            output_tokens=20,
            cache_creation=split,
        ),
    )
    assert total(found) == TokenUsage(10, 5_000, 600, 300, 20)


def test_every_request_behind_a_message_is_billed(tmp_path):
    """The window holds what the last one saw; the bill holds all of them, a summary's too."""
    requests = [
        {"type": "message", "input_tokens": 1_000, "output_tokens": 10},
        {"type": "compaction", "input_tokens": 1_100, "output_tokens": 200},
        {"type": "message", "input_tokens": 400, "output_tokens": 20},
    ]
    usage = {"input_tokens": 1_400, "output_tokens": 30, "iterations": requests}
    found = planted(tmp_path, reply("m1", usage, []))
    assert total(found) == TokenUsage(2_500, 0, 0, 0, 230)
    assert found.peak_tokens == 400
    only = {"input_tokens": 0, "output_tokens": 0, "iterations": requests[1:2]}
    again = planted(tmp_path / "b", reply("m1", only, []), reply("m1", only, []))
    assert total(again) == TokenUsage(1_100, 0, 0, 0, 200)
    assert total(again, READ_AGAIN) == total(again)


def test_what_the_client_says_it_cost_is_kept(tmp_path):
    """Old versions wrote it beside each reply."""
    found = planted(tmp_path, used("m1", 1_000) | {"costUSD": 0.25}, used("m2", 1_000))
    parts = [part for part in parts_of(found.usage) if part.kind == SPENT]
    assert sorted((part.host_usd or 0, part.is_stated) for part in parts) == [
        (0, False),
        (0.25, True),
    ]


BOUNDARY = {
    "type": "system",
    "subtype": "compact_boundary",
    "sessionId": SESSION,
    "isSidechain": False,
    "timestamp": "2026-11-21T20:28:51Z",
    "compactMetadata": {"trigger": "auto", "preTokens": 100_000, "postTokens": 4_000},
}


def test_behind_a_compaction_uncached_input_was_read_again(tmp_path):
    """Its reads from a cache, and the request for the summary, may have been."""
    found = planted(
        tmp_path,
        replied("m1", input_tokens=5, cache_read_input_tokens=99_000, output_tokens=500),
        BOUNDARY,
        replied(
            "m2",
            input_tokens=10,
            cache_read_input_tokens=15_000,
            cache_creation_input_tokens=9_000,
            output_tokens=60,
        ),
        replied("m3", input_tokens=10, cache_read_input_tokens=24_000, output_tokens=60),
    )
    assert count(found, COMPACTION) == found.compactions == 1
    assert total(found, READ_AGAIN) == TokenUsage(10, 0, 9_000, 0, 0)
    assert total(found, MAYBE_READ_AGAIN) == TokenUsage(0, 15_000 + 99_505, 0, 0, 4_000)
    assert count(found, RESTART) == 0


def test_a_compaction_that_the_reports_show_counts_too(tmp_path):
    """The lower report is its first request."""
    found = planted(tmp_path, used("m1", 100_000), used("m2", 20_000))
    assert count(found, COMPACTION) == 1
    assert total(found, READ_AGAIN).input_tokens == 20_000


def test_a_relays_next_context_reads_again(tmp_path):
    """Its first prompt says where the work stands."""
    text = "# Goal\nBuild it.\n\n## Where the work stands\nThis is context 2 of the job."
    found = planted(tmp_path, prompt(text), used("m1", 30_000), used("m2", 31_000))
    assert (count(found, RESTART), count(found, COMPACTION)) == (1, 0)
    assert total(found, READ_AGAIN).input_tokens == 30_000


def test_a_copied_reply_costs_nothing_and_what_follows_reads_again(tmp_path):
    """A fork begins with another session's replies."""
    machine = Machine(tmp_path)
    machine.write(SESSION, used("m1", 10_000), used("m2", 11_000))
    other = "22222222-2222-4222-8222-222222222222"
    later = "2026-11-21T21:00:00Z"
    machine.write(other, *(
        {**one, "sessionId": other, "timestamp": later}
        for one in (used("m1", 10_000), used("m2", 11_000), used("m3", 12_000))
    ))  # fmt: skip
    with TranscriptIndex(None) as index:
        paths = [str(path) for path in machine.projects.rglob("*.jsonl")]
        found = list(index.count_copies_once(list(index.summarize(paths))))
    by_session = {one.summary.session_id: one.summary for one in found}
    assert total(by_session[SESSION]).input_tokens == 21_000
    assert total(by_session[other]).input_tokens == 12_000
    assert count(by_session[other], RESTART) == 1


def test_a_transcript_read_in_two_parts_costs_the_same(tmp_path):
    """The index continues where it stopped, wherever that was."""
    for path in FILES:
        lines = path.read_bytes().splitlines(keepends=True)
        whole = summary_of(path)
        for cut in {len(lines) // 3, len(lines) // 2, len(lines) - 1}:
            target = tmp_path / "grown" / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(b"".join(lines[:cut]))
            place = str(tmp_path / f"{path.name}.{cut}.sqlite3")
            with TranscriptIndex(place) as index:
                list(index.summarize([str(target)]))
            with target.open("ab") as file:
                file.write(b"".join(lines[cut:]))
            with TranscriptIndex(place) as index:
                (found,) = index.summarize([str(target)])
            assert sorted(map(str, found.summary.usage)) == sorted(map(str, whole.usage)), (
                path,
                cut,
            )


def test_the_parts_of_one_transcript_are_bounded():
    """What a hostile file adds beyond counts as of an unknown model, and nothing is lost."""
    rows = []
    sums = UsageSums(rows)
    for number in range(MAX_PARTS + 50):
        sums.add(SPENT, "2026-11-20", f"model-{number}", TokenUsage(1))
    assert len(rows) == MAX_PARTS + 1
    assert sum(part.usage.input_tokens for part in parts_of(rows)) == MAX_PARTS + 50
    assert [part.usage.input_tokens for part in parts_of(rows) if part.model is None] == [50]


def test_days_are_those_of_the_machine(monkeypatch):
    """An evening in New York is no morning in Berlin."""
    at = 1_764_205_200.0  # 2025-11-27T01:00:00Z
    try:
        for zone, day in (("UTC", "2025-11-27"), ("America/New_York", "2025-11-26")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert day_of(at) == day
    finally:
        monkeypatch.undo()
        os.environ.setdefault("TZ", "UTC")
        time.tzset()
    assert day_of(None) == day_of(1e300) == ""


def refused(at):
    """A request that a usage limit refused, as the client writes it."""
    text = [{"type": "text", "text": "You've hit your session limit"}]
    entry = reply("e1", {}, text, timestamp=at, error="rate_limit", isApiErrorMessage=True)
    entry["message"]["model"] = "<synthetic>"
    return entry


def test_a_wait_for_a_usage_limit_ends_with_the_next_reply(tmp_path):
    """From the first refusal on, at most five hours; nothing where no reply followed."""
    day = "2026-11-21T"
    found = planted(
        tmp_path,
        used("m1", 1_000, at=f"{day}08:00:00Z"),
        refused(f"{day}08:10:00Z"),
        refused(f"{day}08:30:00Z"),
        used("m2", 2_000, at=f"{day}09:00:00Z"),
        used("m3", 2_500, at=f"{day}09:30:00Z"),
        refused(f"{day}10:00:00Z"),
        used("m4", 3_000, at="2026-11-24T08:00:00Z"),
        refused("2026-11-24T09:00:00Z"),
    )
    hits = [one.requests for one in parts_of(found.usage) if one.kind == PLAN_HIT]
    assert sum(hits) == 4
    assert found.plan_wait_seconds == 50 * 60 + MOST_WAIT_SECONDS


def test_a_wait_that_began_in_an_earlier_reading_is_continued(tmp_path):
    """A report that reads only what was added knows the refusal before it."""
    machine, day = Machine(tmp_path), "2026-11-21T"
    path = machine.write(SESSION, used("m1", 1_000, at=f"{day}08:00:00Z"))
    waits = []
    with TranscriptIndex(str(tmp_path / "index.sqlite3")) as index:
        for entry in (refused(f"{day}08:10:00Z"), used("m2", 2_000, at=f"{day}08:40:00Z")):
            machine.write(SESSION, entry)
            (one,) = index.summarize([str(path)])
            waits.append(one.summary.plan_wait_seconds)
    assert waits == [0.0, 1_800.0]


def test_a_recorded_limit_of_codex_is_a_hit_without_a_wait():
    """The client ended with it."""
    path = DATA / "exec_json" / "codex-0.169.0" / "usage_limit_today.rollout.jsonl"
    with TranscriptIndex(None) as index:
        (one,) = index.summarize([str(path)])
    assert [part.kind for part in parts_of(one.summary.usage)].count(PLAN_HIT) == 1
    assert one.summary.plan_wait_seconds == 0.0
