"""Which context limit holds: names of models, precedence of sources, refusals of providers."""

import importlib.util
import subprocess
import sys
from inspect import signature

import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context import model_windows
from ultramon.context.limits import (
    DEFAULT_WINDOW_TOKENS,
    LARGE_WINDOW_TOKENS,
    canonical_model_name,
    default_window_from_environment,
    parse_overflow,
    resolve_limit,
    window_for_model,
)
from ultramon.errors import ConfigurationError
from ultramon.state.record import StateRecord

DATA = ROOT / "tests" / "data"


def resolved(model=None, host="", **given_numbers):
    """A state with the limit that holds."""
    record = StateRecord("a", model=model, host=host)
    resolve_limit(record, **given_numbers)
    return record


def rows(file_name):
    lines = (DATA / file_name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


OVERFLOW_TEXTS = [text for _, _, text in rows("overflow_messages.tsv")]

token_counts = st.integers(1_000, 2_000_000)
numbers = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["claude-sonnet-4-5", "gpt-4.1", "nobody-knows-this-one"]),
        "explicit_limit_tokens": token_counts,
        "explicit_window_tokens": token_counts,
        "host_window_tokens": token_counts,
        "host_trigger_tokens": token_counts,
        "host_refusal_tokens": token_counts,
        "observed_window_tokens": token_counts,
        "default_window_tokens": token_counts,
        "suspect_above_tokens": token_counts,
        "reserved_output_tokens": st.integers(0, 999),
    },
)


@pytest.mark.parametrize(("name", "spelling"), rows("model_spellings.tsv"))
def test_every_spelling_of_a_model_has_one_canonical_name(name, spelling):
    """Prefixes, dates, versions and variants come off, the model stays."""
    assert canonical_model_name(spelling) == name
    assert canonical_model_name(f" {spelling.upper()}[1M]\n") == name


@given(st.text())
def test_any_text_may_be_asked_for_as_a_model(text):
    """Odd text raises nothing, whatever the host."""
    canonical_model_name(text)
    assert window_for_model(text) is None or text.strip()
    window_for_model(text, "claude-code")


@given(st.sampled_from(sorted(model_windows.WINDOWS)))
def test_every_name_in_the_table_can_be_found(name):
    """No entry is written in a way the normaliser would never ask for."""
    assert canonical_model_name(name) == name
    assert window_for_model(name) == model_windows.WINDOWS[name]


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("openrouter/anthropic/claude-sonnet-4.5", 200_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("claude-sonnet-4-5[1m]", 1_000_000),
        ("claude-opus-4-6", 1_000_000),
        ("claude-opus-5-5", 1_000_000),
        ("gpt-4o-2024-08-06", 128_000),
        ("gemini-2.5-pro", 1_048_576),
        ("x-ai/grok-4.5", 500_000),
        ("moonshotai/kimi-k2.6", 262_144),
    ],
)
def test_a_known_model_has_the_window_of_its_maker(model, window):
    """A reseller's other number for the same model does not count."""
    assert window_for_model(model) == window


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-5", 272_000),
        ("gpt-5.1-codex", 272_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5-pro", 128_000),
        ("gpt-5.4", 922_000),
        ("gpt-6-sol", 922_000),
    ],
)
def test_gpt_windows_are_what_a_prompt_may_fill(model, window):
    """OpenAI's published number includes the output, which a prompt can never use."""
    assert window_for_model(model) == window


@pytest.mark.parametrize("model", [None, "", "  ", "[1m]", "nobody-knows-this-one", "llama3:70b"])
def test_an_unknown_model_has_no_window(model):
    """Nothing is guessed from a name that is not listed."""
    assert window_for_model(model) is None


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4-6", 200_000),
        ("claude-opus-4-6[1m]", 1_000_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("claude-opus-5-5", 1_000_000),
        ("default", 1_000_000),
        ("opus", 1_000_000),
        ("sonnet", 1_000_000),
        ("sonnet[1m]", 1_000_000),
        ("nobody-knows-this-one", 1_000_000),
        ("moonshotai/kimi-k2.6", 262_144),
    ],
)
def test_claude_code_works_with_windows_of_its_own(model, window):
    """The client's number wins over the table; a model listed only there keeps its size."""
    assert window_for_model(model, "claude-code") == window


@pytest.mark.parametrize(
    ("environ", "window"),
    [
        ({}, DEFAULT_WINDOW_TOKENS),
        ({"ANTHROPIC_1M_CONTEXT": ""}, DEFAULT_WINDOW_TOKENS),
        ({"ANTHROPIC_1M_CONTEXT": "0"}, DEFAULT_WINDOW_TOKENS),
        ({"ANTHROPIC_1M_CONTEXT": "1"}, LARGE_WINDOW_TOKENS),
        ({"ANTHROPIC_1M_CONTEXT": "true"}, LARGE_WINDOW_TOKENS),
    ],
)
def test_the_environment_chooses_the_default_window(environ, window):
    """Set, not empty and not 0 means the large one."""
    assert default_window_from_environment(environ) == window


def test_the_table_is_what_the_script_writes():
    """Nobody edited the generated file, and the script still makes it."""
    pytest.importorskip("genai_prices")
    path = ROOT / "scripts" / "generate_windows.py"
    spec = importlib.util.spec_from_file_location("generate_windows", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if script.source_version() != model_windows.GENERATED_FROM:
        pytest.skip(f"{script.source_version()} is installed, not {model_windows.GENERATED_FROM}")
    written = script.render(
        script.collect_windows(), model_windows.GENERATED_ON, model_windows.GENERATED_FROM
    )
    assert script.TARGET.read_text(encoding="utf-8") == written


def test_importing_the_limits_loads_neither_the_table_nor_a_slow_module():
    """A hook that knows its window pays for nothing else."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import ultramon.context.limits; "
        "slow = {'ultramon.context.model_windows', 're', 'json', 'typing'}; "
        "print(sorted(slow & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("numbers_given", "limit", "window", "source"),
    [
        ("", None, None, "unknown"),
        ("default_window=200000", 200_000, 200_000, "default"),
        ("explicit_limit=50000", 50_000, None, "explicit"),
        ("explicit_limit=50000 host_window=200000", 50_000, 200_000, "explicit"),
        ("explicit_limit=300000 observed_window=200000", 200_000, 200_000, "observed"),
        ("host_trigger=167000", 167_000, None, "host"),
        ("host_trigger=167000 explicit_window=200000", 167_000, 200_000, "host"),
        ("host_refusal=177000 host_window=200000", 177_000, 200_000, "host"),
        ("explicit_window=200000 reserved_output=40000", 160_000, 200_000, "explicit"),
        ("host_trigger=167000 host_window=200000 reserved_output=40000", 160_000, 200_000, "host"),
    ],
)
def test_the_smallest_bound_is_the_limit(numbers_given, limit, window, source):
    """Window less reserved output, trigger and cap compete; the source names the winner."""
    pairs = (pair.split("=") for pair in numbers_given.split())
    limits = resolved(**{f"{name}_tokens": int(number) for name, number in pairs})
    assert limits.context_limit == limit
    assert limits.context_window == window
    assert limits.limit_source == source
    assert not limits.limit_suspect


def test_a_model_decides_alone_whether_its_window_is_known():
    """The default is for an agent without a model, not for an unknown model."""
    known = resolved(model="claude-opus-4-6", default_window_tokens=5_000)
    assert (known.context_limit, known.limit_source) == (1_000_000, "model")
    in_client = resolved(model="claude-opus-4-6", host="claude-code")
    assert (in_client.context_limit, in_client.limit_source) == (200_000, "model")
    unknown = resolved(model="nobody-knows-this-one", default_window_tokens=5_000)
    assert (unknown.context_limit, unknown.limit_source) == (None, "unknown")
    assert unknown.limit_candidates == []


def test_what_claude_code_takes_for_an_unknown_model_is_labelled_as_its_own():
    """It ranks as the model all the same: a provider that refused more wins, and so do settings."""
    unknown = {"model": "nobody-knows-this-one", "host": "claude-code"}
    alone = resolved(**unknown)
    assert (alone.context_limit, alone.limit_source) == (1_000_000, "host")
    refused = resolved(**unknown, observed_window_tokens=262_144)
    assert (refused.context_limit, refused.limit_source) == (262_144, "observed")
    assert [one["verdict"] for one in refused.limit_candidates] == ["binding", "outranked"]
    stops = resolved(**unknown, host_refusal_tokens=177_000)
    assert (stops.context_limit, stops.limit_source) == (177_000, "host")
    elsewhere = resolved(model="nobody-knows-this-one", host="codex")
    assert (elsewhere.context_limit, elsewhere.limit_source) == (None, "unknown")


def test_the_window_comes_from_the_best_source_not_the_smallest():
    """Explicit, host, observed, model: each decides once those before it are gone."""
    given_numbers = {
        "explicit_window_tokens": 900_000,
        "host_window_tokens": 800_000,
        "observed_window_tokens": 700_000,
        "model": "claude-sonnet-4-5",
    }
    winners = []
    while given_numbers:
        winners.append(resolved(**given_numbers).limit_source)
        given_numbers.pop(next(iter(given_numbers)))
    assert winners == ["explicit", "host", "observed", "model"]


def test_on_a_tie_the_user_is_named_before_the_host():
    """The cap first, then the trigger, then the window."""
    tied = resolved(
        explicit_limit_tokens=9_000, host_trigger_tokens=9_000, observed_window_tokens=9_000
    )
    assert tied.limit_source == "explicit"
    assert resolved(host_trigger_tokens=9_000, observed_window_tokens=9_000).limit_source == "host"


def test_every_candidate_is_listed_with_its_verdict():
    """The explanation shows what lost and why."""
    limit = resolved(
        explicit_limit_tokens=900_000,
        host_trigger_tokens=167_000,
        host_window_tokens=200_000,
        observed_window_tokens=300_000,
        model="claude-opus-5-5",
        suspect_above_tokens=250_000,
    )
    assert [(c["source"], c["name"], c["verdict"]) for c in limit.limit_candidates] == [
        ("explicit", "limit", "holds"),
        ("host", "trigger", "not_believed"),
        ("host", "window", "not_believed"),
        ("observed", "window", "binding"),
        ("model", "window", "outranked"),
    ]
    assert limit.limit_suspect
    assert [c["tokens"] for c in limit.limit_candidates if c["verdict"] == "binding"] == [
        limit.context_limit
    ]


@pytest.mark.parametrize(
    "source",
    [
        {"host_window_tokens": 200_000},
        {"observed_window_tokens": 200_000},
        {"model": "claude-sonnet-4-5"},
        {"default_window_tokens": 200_000},
    ],
)
def test_a_window_that_was_exceeded_is_not_believed(source):
    """More reported tokens than the window holds prove the window wrong, not the agent lost."""
    at_the_edge = resolved(**source, suspect_above_tokens=200_000)
    assert (at_the_edge.context_limit, at_the_edge.limit_suspect) == (200_000, False)
    exceeded = resolved(**source, suspect_above_tokens=200_001)
    assert (exceeded.context_limit, exceeded.limit_source) == (None, "unknown")
    assert exceeded.limit_suspect


def test_the_next_source_takes_over_from_a_disproved_one():
    """A host that says 200,000 for a model of a million is overruled by the table."""
    limit = resolved(
        host_window_tokens=200_000, model="claude-opus-5-5", suspect_above_tokens=360_226
    )
    assert (limit.context_limit, limit.limit_source) == (1_000_000, "model")
    assert limit.limit_suspect


def test_what_the_user_said_is_always_believed():
    """Tokens above an explicit window or cap make no suspicion."""
    limit = resolved(
        explicit_window_tokens=200_000, host_window_tokens=150_000, suspect_above_tokens=999_999
    )
    assert (limit.context_limit, limit.limit_suspect) == (200_000, False)
    capped = resolved(
        explicit_limit_tokens=50_000, model="claude-sonnet-4-5", suspect_above_tokens=999_999
    )
    assert (capped.context_limit, capped.limit_source) == (50_000, "explicit")
    assert capped.limit_suspect


def test_a_refusal_that_did_not_take_place_is_not_believed():
    """More than the window holds was answered: then neither number is the host's."""
    limit = resolved(
        host_refusal_tokens=177_000,
        host_window_tokens=200_000,
        model="claude-sonnet-4-5[1m]",
        suspect_above_tokens=300_000,
    )
    assert limit.context_limit == 1_000_000
    verdicts = {c["name"]: c["verdict"] for c in limit.limit_candidates if c["source"] == "host"}
    assert verdicts == {"refusal": "not_believed", "window": "not_believed"}


def test_tokens_above_the_trigger_alone_are_normal():
    """A trigger is passed for a moment before every compaction."""
    limit = resolved(
        host_trigger_tokens=167_000, host_window_tokens=200_000, suspect_above_tokens=180_000
    )
    assert (limit.context_limit, limit.limit_source, limit.limit_suspect) == (
        167_000,
        "host",
        False,
    )


@pytest.mark.parametrize(
    "name", [name for name in signature(resolve_limit).parameters if name.endswith("_tokens")]
)
@pytest.mark.parametrize("value", [True, -1, 1.5, 200_000.0, "200000", float("nan")])
def test_a_number_that_is_no_token_count_is_refused_by_name(name, value):
    """Whole numbers only, and no booleans."""
    with pytest.raises(ConfigurationError, match=f"^{name}="):
        resolved(**{name: value})


def test_a_window_of_nothing_is_refused():
    """Zero is no window; for reserved output and reported tokens it is a fact."""
    with pytest.raises(ConfigurationError, match=r"host_window_tokens=0 .* 1 or more"):
        resolved(host_window_tokens=0)
    assert resolved(reserved_output_tokens=0, suspect_above_tokens=0).limit_source == "unknown"


def test_output_cannot_reserve_the_whole_window():
    """The message names the window it was measured against."""
    with pytest.raises(ConfigurationError, match=r"reserved_output_tokens=8192 .*8192 tokens \(mo"):
        resolved(model="gpt-4", reserved_output_tokens=8_192)


@given(numbers)
def test_the_limit_is_never_larger_than_a_candidate_that_holds(given_numbers):
    """Exactly one candidate binds, unless nothing holds and the limit is unknown."""
    limit = resolved(**given_numbers)
    in_force = [c for c in limit.limit_candidates if c["verdict"] in ("binding", "holds")]
    binding = [c["source"] for c in in_force if c["verdict"] == "binding"]
    assert binding == [limit.limit_source] * bool(in_force)
    if in_force:
        assert limit.context_limit <= min(c["tokens"] for c in in_force)
    else:
        assert (limit.context_limit, limit.limit_source) == (None, "unknown")


@given(numbers)
def test_the_window_is_the_first_one_not_disproved(given_numbers):
    """Precedence decides between windows, never their size."""
    limit = resolved(**given_numbers)
    order = ["explicit", "host", "observed", "model", "default"]
    listed = [c for c in limit.limit_candidates if c["name"] == "window"]
    assert [c["source"] for c in listed] == [s for s in order if s in {c["source"] for c in listed}]
    reported = given_numbers.get("suspect_above_tokens", 0)
    believed = [c for c in listed if c["source"] == "explicit" or c["tokens"] >= reported]
    assert limit.context_window == (believed[0]["tokens"] if believed else None)
    assert limit.limit_suspect == (listed[:1] != believed[:1])


@given(numbers, st.sampled_from(["explicit_limit_tokens", "host_trigger_tokens"]), token_counts)
def test_a_further_bound_never_raises_the_limit(given_numbers, name, tokens):
    """A cap or a trigger can only lower a known limit."""
    given_numbers.pop(name, None)
    before = resolved(**given_numbers).context_limit
    after = resolved(**given_numbers, **{name: tokens}).context_limit
    assert before is None or after <= before


@given(numbers)
def test_a_disproved_window_never_keeps_an_agent_above_its_limit(given_numbers):
    """Once a window is suspect, only the user's own numbers can lie below what was reported."""
    limit = resolved(**given_numbers)
    if limit.limit_suspect and limit.limit_source not in ("explicit", "unknown"):
        binding = next(c for c in limit.limit_candidates if c["verdict"] == "binding")
        assert binding["tokens"] >= given_numbers["suspect_above_tokens"]


def count(cell):
    return None if cell == "-" else int(cell)


@pytest.mark.parametrize(("sent", "maximum", "text"), rows("overflow_messages.tsv"))
def test_a_refusal_of_a_long_prompt_is_understood(sent, maximum, text):
    """The wording of every provider yields what was sent and what is allowed."""
    assert parse_overflow(text) == (count(sent), count(maximum))
    assert parse_overflow(f"Error code: 400\n{text.replace(' ', chr(10))}") is not None


@pytest.mark.parametrize("text", ["", *(text for (text,) in rows("other_errors.tsv"))])
def test_other_errors_are_no_overflow(text):
    """Rate limits above all, even those that count tokens."""
    assert parse_overflow(text) is None


@given(st.text(alphabet="0123456789, ():>+tokensmaximum"), st.sampled_from(OVERFLOW_TEXTS))
def test_any_text_can_be_parsed(noise, refusal):
    """Whatever surrounds a refusal, what comes out is a positive count or nothing."""
    for text in (noise, refusal + noise, noise + refusal):
        for tokens in parse_overflow(text) or ():
            assert tokens is None or tokens > 0
