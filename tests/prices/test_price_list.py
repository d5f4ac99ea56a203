"""Prices by model: the maker's list, a person's own, tiers, times, and what is not priced."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from genai_prices import calc_price, types
from genai_prices.data import providers
from helpers.observed_agents import observed, session

from ultramon.context.token_usage import SIZE_CLASSES, TokenUsage, size_class
from ultramon.errors import ConfigurationError
from ultramon.prices.cost import Cost, cost_of_agents, cost_words, dollars
from ultramon.prices.price_list import Price, PriceList, open_prices
from ultramon.testing import FakeClock

DAY = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
AT = DAY.timestamp()
USAGE = TokenUsage(10_000, 80_000, 4_000, 2_000, 3_000)
ROWS = [
    line.split("\t")
    for line in (Path(__file__).parent / "model_prices.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
MAKERS = ("anthropic", "openai", "google", "x-ai", "deepseek", "moonshotai", "minimax", "zhipuai")


def prices():
    return PriceList(clock=FakeClock(AT))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_model_with_caches_costs_what_was_worked_out_by_hand(row):
    """Input, cache reads, both kinds of cache writes and the reply at their own prices."""
    found = prices().price(USAGE, row[0], AT)
    assert found is not None
    assert found.source == "list"
    assert found.usd == pytest.approx(float(row[-1]), abs=1e-12)


def test_the_table_has_at_least_twenty_models_and_agrees_with_itself():
    """Each total is the sum of its row."""
    assert len(ROWS) >= 20
    for _model, *rates, total in ROWS:
        kinds = zip((10, 80, 4, 2, 3), map(float, rates), strict=True)
        assert sum(count * rate for count, rate in kinds) / 1000 == pytest.approx(float(total))


def test_every_model_of_the_makers_costs_what_the_library_works_out():
    """The short way through our rates is the library's long one, in every tier."""
    price_list, compared = prices(), 0
    for provider in providers:
        if provider.id not in MAKERS:
            continue
        for model in provider.models:
            mine = price_list.price(USAGE, model.id, AT)
            if mine is None or price_list._find_model(model.id) is not model:
                continue
            rates = model.get_prices(DAY)
            if set(rates.__dict__) - {*KEYS, "web_searches_kcount", "storage_searches_kcount"}:
                continue  # also prices pictures or sound, which no count of ours holds
            for factor in (1, 3, 10):
                usage = TokenUsage(*(count * factor for count in USAGE))
                theirs = calc_price(
                    types.Usage(
                        input_tokens=usage.input_side_tokens,
                        cache_read_tokens=usage.cache_read_tokens,
                        cache_write_tokens=usage.cache_write_tokens + usage.cache_write_1h_tokens,
                        cache_write_1h_tokens=usage.cache_write_1h_tokens,
                        output_tokens=usage.output_tokens,
                    ),
                    model.id,
                    genai_request_timestamp=DAY,
                )
                found = price_list.price(usage, model.id, AT)
                assert found is not None
                assert found.usd == pytest.approx(float(theirs.total_price)), model.id
                compared += 1
    assert compared > 300


KEYS = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok")


def test_a_request_above_a_tier_pays_its_price_for_every_token():
    """The tier is decided by the whole input side, cached tokens included, of one request."""
    price_list = prices()
    small, large = TokenUsage(200_000), TokenUsage(1, 200_000)
    model = "claude-sonnet-4-5"
    assert price_list.price(small, model, AT).usd == pytest.approx(0.6)
    assert price_list.price(large, model, AT).usd == pytest.approx(0.000006 + 0.12)
    ten_requests = TokenUsage(1_000_000)
    found = price_list.price(ten_requests, model, AT, request_tokens=100_000)
    assert found.usd == pytest.approx(3.0)


def test_the_size_classes_hold_every_tier_of_the_price_data():
    """Sums that are kept by class can be priced exactly later."""
    starts = {
        tier.start
        for provider in providers
        for model in provider.models
        for price in _all_prices(model)
        for tier in getattr(price, "tiers", ())
    }
    assert starts <= set(SIZE_CLASSES)
    assert list(SIZE_CLASSES) == sorted(SIZE_CLASSES)
    assert [size_class(count) for count in (0, 32_000, 32_001, 200_000, 200_001, 10**7)] == [
        0, 0, 32_000, 199_999, 200_000, 524_288,
    ]  # fmt: skip


def _all_prices(model):
    sets = model.prices if isinstance(model.prices, list) else [model]
    for one in sets:
        yield from one.prices.__dict__.values()


def test_prices_are_those_of_the_day_of_the_request():
    """A price that changed holds for what came later."""
    usage = TokenUsage(300_000)
    before = datetime.datetime(2026, 3, 12, 23, tzinfo=datetime.UTC).timestamp()
    model = "claude-opus-4-6"
    assert prices().price(usage, model, before).usd == pytest.approx(3.0)
    assert prices().price(usage, model, AT).usd == pytest.approx(1.5)
    assert prices().price(usage, model).usd == pytest.approx(1.5)


def test_conditions_of_the_day_begin_at_half_hours():
    """Rates are remembered by the half hour."""
    for provider in providers:
        for model in provider.models:
            for one in model.prices if isinstance(model.prices, list) else ():
                if isinstance(one.constraint, types.TimeOfDateConstraint):
                    for moment in (one.constraint.start_time, one.constraint.end_time):
                        assert (moment.minute % 30, moment.second) == (0, 0), model.id


def test_the_fast_way_has_its_own_price():
    """Anthropic's fast mode is dearer; where a model has none the usual price holds."""
    fast = prices().price(TokenUsage(10_000), "claude-opus-4-8", AT, speed="fast")
    assert fast.usd == pytest.approx(0.1)
    assert prices().price(TokenUsage(10_000), "gpt-5", AT, speed="fast").usd == pytest.approx(
        0.0125
    )


@pytest.mark.parametrize(
    "spelling",
    [
        "claude-opus-4-5",
        "claude-opus-4-5-20251101",
        "claude-opus-4-5[1m]",
        "anthropic/claude-opus-4.5",
        "openrouter/anthropic/claude-opus-4.5",
        "us.anthropic.claude-opus-4-5-20251101-v1:0",
        "claude-opus-4-5@20251101",
        "Claude-Opus-4-5",
    ],
)
def test_a_model_is_found_in_every_spelling(spelling):
    """Gateways and clouds add to the maker's name, and its list price is meant."""
    assert prices().price(USAGE, spelling, AT) == Price(pytest.approx(0.21), "list")


@pytest.mark.parametrize(
    "model",
    [None, "", "<synthetic>", "opus", "fake-1", "qwen3:30b", "gpt-oss:20b", "a-model-of-tomorrow",
     "deepseek/deepseek-chat:free", "claude-of-somebody"],
)  # fmt: skip
def test_an_unknown_model_is_unpriced_and_never_free(model):
    """A local model, an alias and an invented name have no list price."""
    assert prices().price(USAGE, model, AT) is None


def test_what_the_client_says_wins():
    """Its own number needs no list, even for an unknown model."""
    assert prices().price(USAGE, "fake-1", AT, host_usd=0.5) == Price(0.5, "host")


HUGE = f"1{'0' * 400}"
"""More than a float holds."""
OWN = """
date = 2026-11-01
list_price_factor = 0.5

[usd_per_million_tokens."claude-opus-4-6"]
input = 4
output = 20
cache_read = 0.4
cache_write = 5
cache_write_1h = 8

[usd_per_million_tokens."house/llama-70b"]
input = 1
output = 2
"""


def test_own_prices_win_over_the_list(tmp_path):
    """Named models cost what the file says, others the agreed part of the list price."""
    path = tmp_path / "prices.toml"
    path.write_text(OWN)
    own = open_prices(str(path), FakeClock(AT))
    assert own.price(USAGE, "anthropic/claude-opus-4.6", AT) == Price(pytest.approx(0.168), "own")
    assert own.price(USAGE, "llama-70b", AT) == Price(pytest.approx(0.102), "own")
    assert own.price(USAGE, "claude-opus-4-5", AT) == Price(pytest.approx(0.105), "own")
    assert own.price(USAGE, "fake-1", AT) is None
    assert own.own_date == datetime.date(2026, 11, 1)
    assert own.has_own
    assert not open_prices().has_own


@pytest.mark.parametrize(
    "text",
    ["", "list_price_factor = 0", "list_price_factor = 0.5", OWN],
    ids=["list", "free", "half", "own"],
)
def test_the_weights_of_a_hook_give_the_price(tmp_path, text):
    """A program that multiplies shows what the report shows."""
    path = tmp_path / "prices.toml"
    path.write_text(text)
    own = open_prices(str(path), FakeClock(AT))
    for model in ("claude-opus-4-6", "claude-opus-4-5"):
        ((above, *weights),) = own.token_weights(model)
        billionths = sum(count * weight for count, weight in zip(USAGE, weights, strict=True))
        assert above == 0
        assert own.price(USAGE, model, AT).usd == pytest.approx(billionths / 1e9)
    assert own.token_weights("fake-1") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = 1", "models=1"),
        ("usd_per_million_tokens = 1", "tables such as"),
        ('usd_per_million_tokens.x = 1', "a table of prices"),
        ('usd_per_million_tokens.x = {input = 1}', "x.output=None"),
        ('usd_per_million_tokens.x = {input = -1, output = 1}', "a number, 0 or more"),
        ('usd_per_million_tokens.x = {input = true, output = 1}', "a number, 0 or more"),
        ('usd_per_million_tokens.x = {input = nan, output = 1}', "a number, 0 or more"),
        ('usd_per_million_tokens.x = {input = 1, output = 1, reading = 2}', "one of input, output"),
        ('usd_per_million_tokens = {x={input=1,output=1},"a/x"={input=1,output=1}}', "no other"),
        ('date = "today"', "a date such as"),
        ("list_price_factor = '10 %'", "a number, 0 or more"),
        pytest.param(f"list_price_factor = {HUGE}", "at most 1,000,000", id="huge factor"),
        pytest.param(
            f"usd_per_million_tokens.x = {{input = 1, output = {HUGE}}}", "at most", id="huge price"
        ),
        ("usd_per_million_tokens.x = {input = 1e308, output = 1}", "at most 1,000,000"),
        ("usd_per_million_tokens.x = {input = inf, output = 1}", "at most 1,000,000"),
        pytest.param(f"date = {'[' * 5_000}", "nested too deep", id="deep"),
        pytest.param(f"{'.'.join(['date'] * 5_000)} = 1", "nested too deep", id="dotted"),
        ("date = ", "a readable TOML file"),
        ("\xff", "a readable TOML file"),
    ],
)  # fmt: skip
def test_a_wrong_file_of_prices_says_what_is_wrong(tmp_path, text, words):
    """The key, the value, the file and what is allowed are in the message."""
    path = tmp_path / "prices.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError) as caught:
        open_prices(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_of_prices_says_so(tmp_path):
    """No list price silently stands in for a contract."""
    with pytest.raises(ConfigurationError, match="No such file"):
        open_prices(str(tmp_path / "none.toml"))


def test_the_data_has_a_version_and_a_date():
    """The date is that of the newest change, and never after the day it was installed."""
    found = prices()
    assert found.data_version.startswith("genai-prices ")
    assert datetime.date(2026, 11, 1) <= found.data_date <= DAY.date()
    early = PriceList(clock=FakeClock(datetime.datetime(2026, 4, 1).timestamp()))
    assert early.data_date <= datetime.date(2026, 4, 1)


def test_prices_load_late_and_use_no_network():
    """The data loads with the first question, and looking a price up opens no socket."""
    code = """
import sys, socket
def refuse(*args, **kwargs):
    raise AssertionError("a socket")
socket.socket.__init__ = refuse
socket.getaddrinfo = refuse
import threading
import ultramon, ultramon.prices.price_list, ultramon.prices.cost
prices = ultramon.prices.price_list.open_prices()
from ultramon.context.token_usage import TokenUsage
assert "genai_prices" not in sys.modules
assert prices.price(TokenUsage(1), None) is None
assert "genai_prices" not in sys.modules
assert prices.price(TokenUsage(1000000), "gpt-5").usd > 0
assert prices.data_date
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


def test_a_sum_with_an_unpriced_part_says_at_least():
    """The priced part is shown, and what is missing is never counted as nothing."""
    cost = Cost()
    assert (cost.known_usd, cost.words, cost.source) == (None, "", None)
    cost.add(None)
    assert (cost.known_usd, cost.words) == (None, "unpriced")
    cost.add(Price(2.0, "list"))
    assert (cost.known_usd, cost.words, cost.source) == (2.0, "≥ $2.00", "list")
    other = Cost()
    other.add(Price(1.5, "host"))
    assert other.words == "$1.50"
    cost.merge(other)
    assert (cost.usd, cost.priced, cost.unpriced, cost.source) == (3.5, 2, 1, "mixed")


def test_amounts_are_short():
    """Cents, a thousand's mark, and no zero for something small."""
    assert [dollars(usd) for usd in (0, 0.001, 0.01, 3.1, 1204)] == [
        "$0", "<$0.01", "$0.01", "$3.10", "$1,204.00",
    ]  # fmt: skip
    assert cost_words(None) == ""


def test_usage_counts_no_token_twice():
    """Its sums are of all kinds."""
    usage = TokenUsage(10, 60, 10, 20, 5)
    assert (usage.input_side_tokens, usage.tokens) == (100, 105)
    assert usage.plus(TokenUsage(10, 60, 30, 0, 5)) == TokenUsage(20, 120, 40, 20, 10)


def test_agents_cost_together_at_least_what_is_known_of_them():
    """One whose cost is unknown, or that is not among them, makes it a lower bound."""
    agents = [session(child=name) for name in ("a", "b")] + [observed("own", host=None)]
    ids = [one.record.agent_id for one in agents]
    costs = {ids[0]: Cost(1.0, priced=1), ids[1]: Cost(0.5, priced=1)}
    known = cost_of_agents(agents, costs)
    assert known is not None
    assert known.words == "$1.50"
    for least in (
        cost_of_agents([*agents, session(child="c")], costs),
        cost_of_agents(agents, costs, is_all=False),
    ):
        assert least is not None
        assert least.words == "≥ $1.50"
    assert cost_of_agents(agents, {}) is None
    assert cost_of_agents([], costs, is_all=False) is None
