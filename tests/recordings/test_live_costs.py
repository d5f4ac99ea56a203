"""What agents at work cost: read once, then what is added, and never too much at once."""

from __future__ import annotations

import pytest
from helpers.planted_transcripts import SESSION, Machine, line, used
from helpers.program import CAPTURES

from ultramon import ContextConfig
from ultramon.prices.price_list import PriceList
from ultramon.recordings import live_costs
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.live_costs import LiveCosts
from ultramon.recordings.survey import survey
from ultramon.state.record import StateRecord
from ultramon.system.processes import this_machine
from ultramon.testing import FakeClock

NOW = 1_795_400_000.0
PRICES = PriceList(clock=FakeClock(NOW))


def agent(path, host="claude-code", **facts):
    memory = {"claude-code": "claudeCode"}.get(host, host)
    facts = {"hostname": this_machine().hostname, "session_id": SESSION} | facts
    extra = {memory: {"transcriptPath": str(path)}}
    return StateRecord("one", host=host, extra=extra, **facts)


def opus(name, tokens):
    entry = used(name, tokens, output=0)
    entry["message"]["model"] = "claude-opus-4-5"
    return entry


def usd(costs, record):
    found = costs.of_agents([record]).get("one")
    return None if found is None else found.known_usd


def test_the_last_reply_counts_at_once_and_what_is_added_after_it(tmp_path):
    """Corrections of a streamed reply replace it."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION, opus("m1", 100_000))
    costs, record = LiveCosts(PRICES), agent(path)
    assert usd(costs, record) == pytest.approx(0.5)
    assert usd(costs, record) == pytest.approx(0.5)
    machine.write(SESSION, opus("m2", 120_000))
    assert usd(costs, record) == pytest.approx(1.1)
    machine.write(SESSION, opus("m2", 140_000))
    assert usd(costs, record) == pytest.approx(1.2)
    with path.open("ab") as file:
        file.write(line(opus("m3", 100_000)).rstrip(b"\n")[:-9])
    assert usd(costs, record) == pytest.approx(1.2)


def test_a_long_transcript_is_read_over_several_looks(tmp_path, monkeypatch):
    """Half of it is no cost: it is shown when all of it was read."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION, *(opus(f"m{number}", 100_000) for number in range(100)))
    monkeypatch.setattr(live_costs, "BYTES_PER_LOOK", path.stat().st_size // 3)
    costs, record = LiveCosts(PRICES), agent(path)
    found = [usd(costs, record) for _ in range(5)]
    assert found[:2] == [None, None]
    assert found[-1] == pytest.approx(50.0)


def test_another_file_in_its_place_is_read_anew(tmp_path):
    """A shorter one, or one with another inode."""
    machine = Machine(tmp_path)
    path = machine.write(SESSION, opus("m1", 100_000), opus("m2", 100_000))
    costs, record = LiveCosts(PRICES), agent(path)
    assert usd(costs, record) == pytest.approx(1.0)
    path.unlink()
    machine.write(SESSION, opus("n1", 200_000))
    assert usd(costs, record) == pytest.approx(1.0)
    path.write_bytes(b"")
    assert usd(costs, record) is None


def test_recorded_sessions_cost_what_the_report_says(tmp_path):
    """The same fold, for every host's recordings."""
    compared = 0
    for path in sorted(CAPTURES.rglob("*.jsonl")):
        with TranscriptIndex(None) as index:
            found = list(index.summarize([str(path)]))
        report = survey(found, ContextConfig(), now=NOW, prices=PRICES)
        if not report.hosts:
            continue
        record = agent(path, report.hosts[0], model=found[0].summary.model)
        cost = usd(LiveCosts(PRICES), record)
        assert (cost or 0) == pytest.approx(report.cost_usd or 0, abs=1e-6), path
        compared += cost is not None
    assert compared >= 6


def test_what_cannot_be_read_here_is_left_out(tmp_path):
    """Another machine's, one that is gone, and an agent without a client."""
    path = Machine(tmp_path).write(SESSION, opus("m1", 100_000))
    costs = LiveCosts(PRICES)
    assert usd(costs, agent(path, hostname="another")) is None
    assert usd(costs, agent(tmp_path / "gone.jsonl")) is None
    assert usd(costs, agent(tmp_path)) is None
    assert costs.of_agents([StateRecord("one")]) == {}


def test_the_transcripts_kept_in_mind_are_bounded(tmp_path, monkeypatch):
    """The one that was looked at longest ago goes."""
    monkeypatch.setattr(live_costs, "MOST_FOLLOWED", 3)
    machine, costs = Machine(tmp_path), LiveCosts(PRICES)
    paths = [machine.write(f"{SESSION}{number}", opus("m1", 100_000)) for number in range(5)]
    for path in (*paths, *paths):
        assert usd(costs, agent(path)) == pytest.approx(0.5)
    assert len(costs._followed) == 3


def test_a_look_at_more_agents_than_are_kept_in_mind_comes_to_an_end(tmp_path, monkeypatch):
    """Each look reads further; one at fewer agents in between forgets none of the others."""
    monkeypatch.setattr(live_costs, "MOST_FOLLOWED", 3)
    machine, costs, records = Machine(tmp_path), LiveCosts(PRICES), []
    for number in range(5):
        path = machine.write(f"{SESSION}{number}", opus("m1", 100_000))
        records.append(agent(path))
        records[-1].agent_id = f"agent-{number}"
    # Two transcripts a look: it ends with the line that exceeds its bytes.
    monkeypatch.setattr(live_costs, "BYTES_PER_LOOK", path.stat().st_size + 1)
    known = []
    for _ in range(4):
        known.append(len(costs.of_agents(iter(records))))
        costs.of_agents(records[:1])
    assert known == sorted(known)
    assert known[0] < 3
    assert known[-1] == 5
    others = [machine.write(f"other{number}", opus("m1", 1_000)) for number in range(2)]
    for path in others:
        costs.of_agents([agent(path)])
    assert len(costs._followed) == 5
