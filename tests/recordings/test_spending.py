"""What transcripts spent by quarters of an hour: the same requests as their bill by days."""

from __future__ import annotations

import pytest
from helpers.planted_transcripts import SESSION, Machine, reply
from recordings.test_recorded_usage import FILES, summary_of

from ultramon.context.token_usage import TokenUsage
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.spending import SpendingSums, quarter_of, quarter_time
from ultramon.recordings.usage import SPENT, parts_of


def by_model(rows):
    """Tokens, requests and the client's own amounts, by what decides the price."""
    sums = {}
    for part in parts_of(rows):
        if part.kind == SPENT:
            key = part.model, part.size_class, part.speed, part.is_stated
            usage, requests, usd = sums.get(key, (TokenUsage(), 0, 0.0))
            sums[key] = usage.plus(part.usage), requests + part.requests, usd + part.cost_usd
    return {key: found for key, found in sums.items() if found[1] or any(found[0])}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_quarters_of_an_hour_add_up_to_the_days(path):
    """For every recorded transcript of all hosts."""
    summary = summary_of(path)
    assert by_model(summary.spending) == by_model(summary.usage)


def test_a_request_is_in_the_quarter_of_its_time(tmp_path):
    machine = Machine(tmp_path)
    usage = {"input_tokens": 100, "output_tokens": 10}
    times = ("2026-11-20T23:59:59Z", "2026-11-21T00:00:00Z", "2026-11-21T00:14:59Z")
    path = machine.write(
        SESSION, *(reply(f"m{n}", usage, [], timestamp=at) for n, at in enumerate(times))
    )
    found = {part.day: part.requests for part in parts_of(summary_of(path).spending)}
    assert found == {"2026-11-20T23:45": 1, "2026-11-21T00:00": 2}


def test_a_transcript_that_grew_counts_each_request_once(tmp_path):
    machine = Machine(tmp_path)
    kept = str(tmp_path / "cache" / "index.sqlite3")
    usage = {"input_tokens": 100, "output_tokens": 10}
    for number in range(3):
        at = f"2026-11-20T1{number}:00:00Z"
        path = machine.write(SESSION, reply(f"m{number}", usage, [], timestamp=at))
        with TranscriptIndex(kept) as index:
            (found,) = index.summarize([str(path)])
        assert [part.requests for part in parts_of(found.summary.spending)] == [1] * (number + 1)


def test_of_too_many_quarters_the_older_half_is_kept_by_days():
    rows = []
    sums = SpendingSums(rows)
    usage = TokenUsage(100, 0, 0, 0, 10)
    for number in range(SpendingSums.MOST + 500):
        at = 1_790_000_000.0 + number * 900
        sums.add(SPENT, quarter_of(at), "claude-opus-4-5", usage, request_tokens=100)
    parts = parts_of(rows)
    assert len(parts) < SpendingSums.MOST
    assert sum(part.requests for part in parts) == SpendingSums.MOST + 500
    assert {part.day[10:] for part in parts[:10]} == {"T12:00"}
    assert parts[-1].day == quarter_of(at)
    assert SpendingSums(rows)._by_key.keys() == sums._by_key.keys()


def test_quarters_begin_days_of_every_time_zone():
    """Nepal is 5:45 ahead, Chatham 13:45 in summer."""
    assert quarter_of(1_795_716_000.0 + 899) == "2026-11-26T18:00"
    assert quarter_time("2026-11-26T18:15") == 1_795_716_900.0
    assert quarter_of(None) == quarter_of(float("nan")) == ""
    assert quarter_time("") is None
