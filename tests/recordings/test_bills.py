"""What sessions cost: by session, subagent, project, model and day, and what has no price."""

from __future__ import annotations

import pytest
from helpers.planted_transcripts import OTHER, SESSION, Machine, boundary, busy_machine, reply, used
from helpers.qwen_session import NEW, plant_run

from ultramon import ContextConfig
from ultramon.prices.own_prices import OwnPrices
from ultramon.prices.price_list import PriceList
from ultramon.prices.rates import Rates, TierRates
from ultramon.recordings.clients import client_files
from ultramon.recordings.index import TranscriptIndex
from ultramon.recordings.survey import survey
from ultramon.testing import FakeClock

NOW = 1_795_400_000.0
PRICES = PriceList(clock=FakeClock(NOW))


def surveyed(machine, prices=PRICES, **options):
    with TranscriptIndex(None) as index:
        found = list(index.summarize(client_files(machine.environ)))
    return survey(found, ContextConfig(), now=NOW, prices=prices, **options)


def replied(name, model, tokens, output=0, at="2026-11-21T20:28:51Z", **usage):
    counts = {"input_tokens": tokens, "output_tokens": output, **usage}
    entry = reply(name, counts, [{"type": "text", "text": "Done."}], timestamp=at)
    entry["message"]["model"] = model
    return entry


@pytest.fixture
def priced(tmp_path):
    """Two sessions with three models in two projects, on two days; one model has no price."""
    machine = Machine(tmp_path)
    machine.write(
        SESSION,
        replied("m1", "claude-opus-4-5", 100_000, 10_000),  # 0.50 + 0.25
        replied("m2", "claude-haiku-4-5", 100_000, at="2026-11-22T20:28:51Z"),  # 0.10
    )
    machine.write(SESSION, replied("s1", "claude-haiku-4-5", 200_000), agent="a1")  # 0.20
    machine.write(SESSION, replied("s2", "fake-1", 50_000), agent="a2")
    machine.write(OTHER, replied("o1", "claude-opus-4-5", 200_000), project="/home/dev/b")  # 1.00
    return machine


def test_every_row_has_its_costs(priced):
    """A session's with its subagents, and each of them by itself."""
    found = surveyed(priced)
    assert found.cost_usd == pytest.approx(2.05)
    assert (found.unpriced_sessions, found.cost_source) == (1, "list")
    assert found.spent.input_tokens == 650_000
    assert found.spent.output_tokens == 10_000
    by_id = {one.id: one for one in found.dearest_sessions}
    first = by_id[SESSION]
    assert first.cost_usd == pytest.approx(1.05)
    assert first.subagent_cost_usd == pytest.approx(0.2)
    assert (first.unpriced_sessions, by_id[OTHER].unpriced_sessions) == (1, 0)
    assert [(one.id, one.cost_usd) for one in first.dearest_subagents] == [
        ("a1", 0.2),
        ("a2", None),
    ]
    assert {one.path: one.cost_usd for one in found.by_project} == pytest.approx(
        {"/home/dev/shop": 1.05, "/home/dev/b": 1.0}
    )
    by_model = {one.model: (one.cost_usd, one.sessions) for one in found.by_model}
    assert by_model == {
        "claude-opus-4-5": (1.75, 2),
        "claude-haiku-4-5": (0.3, 1),
        "fake-1": (None, 1),
    }
    assert found.by_model[0].model == "claude-opus-4-5"
    days = [(one.day.isoformat(), one.cost_usd) for one in found.by_day]
    assert days == [("2026-11-21", 1.95), ("2026-11-22", 0.1)]


def test_sums_of_all_rows_agree(tmp_path):
    """Projects, models and days are three ways to divide the same amount."""
    found = surveyed(busy_machine(tmp_path))
    for rows in (found.by_project, found.by_model, found.by_day):
        assert sum(one.cost_usd or 0 for one in rows) == pytest.approx(found.cost_usd, abs=1e-5)
    assert sum(one.compactions for one in found.by_day) == found.compactions


def test_nothing_priced_is_null_and_nothing_spent_is_no_unpriced_session(tmp_path):
    """Unknown is not 0, and a session without a reply has no price to miss."""
    machine = Machine(tmp_path)
    machine.write(SESSION, replied("m1", "fake-1", 100))
    machine.write(OTHER, {"type": "user", "message": {"role": "user", "content": "Hello."}})
    found = surveyed(machine)
    assert (found.cost_usd, found.unpriced_sessions, found.read_again_usd) == (None, 1, None)
    assert found.sessions == 2
    assert surveyed(machine, None).price_data is None


def test_what_compactions_cost_is_a_range(tmp_path):
    """At least what no cache held behind one; at most the cached part and the summary's request."""
    machine = Machine(tmp_path)
    machine.write(
        SESSION,
        replied("m1", "claude-opus-4-5", 5, 495, cache_read_input_tokens=99_500),
        boundary(),
        replied(
            "m2", "claude-opus-4-5", 0, 10, cache_read_input_tokens=20_000,
            cache_creation_input_tokens=8_000, at="2026-11-21T21:28:51Z",
        ),
    )  # fmt: skip
    found = surveyed(machine)
    written, read, summarised = 8_000 * 6.25e-6, 20_000 * 0.5e-6, 100_000 * 0.5e-6
    assert found.read_again_usd == pytest.approx(written)
    least = written + read + summarised
    assert found.read_again_most_usd >= least
    # The client says how many tokens the summary left, which were its output.
    assert found.read_again_most_usd <= least + 30_000 * 25e-6


def test_a_subagent_without_a_model_costs_what_the_sessions_does(tmp_path):
    """Qwen Code names none in a subagent's file."""
    own = OwnPrices({"qwen3-coder-plus": Rates((TierRates(0, 1.0, 1.0, 1.0, 1.0, 1.0),))})
    machine = Machine(tmp_path)
    plant_run(tmp_path / "qwen" / "projects" / "-home-dev-shop", NEW, "subagents")
    found = surveyed(machine, PriceList(own, FakeClock(NOW)))
    assert found.unpriced_sessions == 0
    assert found.cost_usd == pytest.approx(sum(found.spent.model_dump().values()) / 1e6)
    assert found.cost_source == "own"
    assert found.price_data.has_own_prices


def test_the_clients_own_cost_wins(tmp_path):
    """It is labelled, and needs no known model."""
    machine = Machine(tmp_path)
    machine.write(SESSION, used("m1", 1_000) | {"costUSD": 0.25})
    found = surveyed(machine)
    assert (found.cost_usd, found.cost_source) == (0.25, "host")
