"""What a context of a relay has spent, by the larger of two counts and by list prices."""

import pytest

from ultramon.hosts.calls.spending import FOLDER, SPENT_SUFFIX, Reserve, Spent, read_reserve
from ultramon.hosts.transcripts.records import Report
from ultramon.prices.price_list import PriceList
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launchers.outcome import SpentTokens
from ultramon.relay.runs.context_record import ContextRecord
from ultramon.relay.runs.spending import NANO, RunSpending
from ultramon.state.record import StateRecord
from ultramon.system import compact_json
from ultramon.system.files import make_private_directory

MODEL, OTHER, UNKNOWN = "claude-sonnet-4-5", "claude-haiku-4-5", "a-model-of-nobody"
PRICES = PriceList()


def usd(model, input_tokens):
    return input_tokens * PRICES.token_weights(model)[0][1] / NANO


@pytest.fixture
def run(tmp_path):
    """A run with a cap, its one context, and what its hooks have counted."""
    return Context(tmp_path)


class Context:
    """One context of a run.

    Args:
        path: Of the run.
        max_usd: Its cap.
    """

    def __init__(self, path, max_usd=100.0):
        self.path, self.said = str(path), []
        self.record = ContextRecord(1, "s", 0.0)
        choices = RelayChoices("g", self.path, max_usd=max_usd)
        self.spending = RunSpending(choices, self.path, [self.record], self.said.append, PRICES)
        self.state = StateRecord("job.1", started_at=0.0)
        self.state.model, self.state.estimated_tokens = MODEL, 100
        make_private_directory(str(path / FOLDER))

    def counted(self, *replies, weights=()):
        """Let the hooks have counted replies, with the weights of some models."""
        known = {model: PRICES.token_weights(model) for model in weights}
        reserve, spent = Reserve(None, 100 * NANO, known), Spent()
        reserve.store(self.path, "job.1")
        for number, (model, tokens) in enumerate(replies):
            spent.add(Report(f"m{number}", model, model, tokens, 0, 0, 0), reserve)
        with open(f"{self.path}/{FOLDER}/job.1{SPENT_SUFFIX}", "wb") as file:
            file.write(compact_json.dumps(spent.to_json()).encode())

    def settle(self):
        self.spending.settle(self.record, "job.1", self.state)
        return self.record.list_usd


def test_the_larger_count_has_the_price(run):
    """A host that counts requests which its hooks have not seen has spent them."""
    run.counted((MODEL, 1_000), weights=(MODEL,))
    run.record.spent = SpentTokens(9_000)
    assert run.settle() == pytest.approx(usd(MODEL, 9_000))
    assert run.record.spent == SpentTokens(9_000)
    run.record.spent = SpentTokens(500)
    assert run.settle() == pytest.approx(usd(MODEL, 1_000))
    assert run.record.spent == SpentTokens(1_000)


def test_replies_that_wait_for_a_weight_have_a_price_in_the_end(run):
    """The last reply of a model that the relay has not seen running, such as a subagent's."""
    run.counted((MODEL, 1_000), (OTHER, 4_000), weights=(MODEL,))
    assert run.settle() == pytest.approx(usd(MODEL, 1_000) + usd(OTHER, 4_000))
    assert run.said == []


def test_what_has_no_price_takes_none_from_the_rest(run):
    """It is said once."""
    run.counted((MODEL, 1_000), (UNKNOWN, 4_000))
    assert run.settle() == pytest.approx(usd(MODEL, 1_000))
    assert run.settle() == pytest.approx(usd(MODEL, 1_000))
    assert run.said == [f"{UNKNOWN} has no list price: --max-usd does not hold for it"]


@pytest.mark.parametrize("max_usd", [None, 100.0])
def test_a_context_that_continues_after_a_limit_costs_more(tmp_path, max_usd):
    """Its second process has spent beside the first."""
    run = Context(tmp_path, max_usd)
    run.record.spent = SpentTokens(1_000)
    assert run.settle() == pytest.approx(usd(MODEL, 1_000))
    run.record.spent += SpentTokens(2_000)
    assert run.settle() == pytest.approx(usd(MODEL, 3_000))


class Contexts:
    """Two contexts that run beside each other, and what their hooks have counted."""

    def __init__(self, path):
        self.path = str(path)
        self.records = [ContextRecord(number, "s", 0.0) for number in (1, 2)]
        choices = RelayChoices("g", self.path, max_tokens=1_000)
        self.spending = RunSpending(choices, self.path, self.records, print, PRICES)
        for number in (1, 2):
            self.spending.reserve(f"job.{number}", MODEL)

    def counted(self, number, tokens):
        spent = Spent()
        spent.add(Report("m", MODEL, MODEL, tokens, 0, 0, 0), Reserve(1_000, None, {}))
        with open(f"{self.path}/{FOLDER}/job.{number}{SPENT_SUFFIX}", "wb") as file:
            file.write(compact_json.dumps(spent.to_json()).encode())

    @property
    def reserves(self):
        return [read_reserve(self.path, f"job.{number}").tokens for number in (1, 2)]


def test_what_a_context_has_not_spent_is_there_for_the_one_that_is_left(tmp_path):
    run = Contexts(tmp_path)
    assert run.reserves == [500, 500]
    run.counted(2, 100)
    run.spending.settle(run.records[1], "job.2", None)
    assert run.reserves[0] == 900


def test_what_a_context_has_spent_before_a_limit_is_counted_once(tmp_path):
    run = Contexts(tmp_path)
    run.counted(1, 300)
    run.spending.settle(run.records[0], "job.1", None)
    run.spending.follow("job.1")
    run.spending.follow("job.2")
    assert sum(run.reserves) == 1_000
