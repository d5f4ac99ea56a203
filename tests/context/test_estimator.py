"""Facts about core.estimator: totality, monotonicity, additivity, families, known counts."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.context.estimator import (
    DEFAULT_FAMILY,
    FAMILIES,
    PAIR_CLASSES,
    TRIPLE_CLASSES,
    estimate_tokens,
    estimate_tokens_float,
    family_for_model,
)
from ultramon.context.estimator_weights import TABLES
from ultramon.errors import ConfigurationError

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
LUMPY_TEXT = st.lists(
    st.tuples(
        ANY_TEXT | st.sampled_from(["=", "\n", " ", "7", "é", "漢", "😀", "word "]),
        st.integers(1, 4000),
    ),
    max_size=4,
).map(lambda parts: "".join((text * times)[:20_000] for text, times in parts))
FAMILY = st.sampled_from(FAMILIES)

# Counts of exact o200k_base and of the offline reconstruction of Claude's counts (package ctok).
KNOWN_COUNTS = [
    ("digits", "1234567890" * 100, 334, 335, 334),
    ("a rule", "=" * 1000, 16, 18, 63),
    ("newlines", "\n" * 1000, 63, 9, 31),
    ("Amharic", "ሰላም ለዓለም እንዴት ናችሁ " * 50, 1600, 1101, 1101),
    ("Cherokee", "ᎣᏏᏲ ᏙᎯᏧ ᎠᏂᏣᎳᎩ " * 50, 1800, 2001, 1951),
    ("Georgian", "გამარჯობა მსოფლიო როგორ ხარ " * 50, 301, 1101, 1101),
    ("Armenian", "Բարեւ աշխարհ ինչպես ես " * 50, 301, 951, 951),
    ("Khmer", "សួស្តីពិភពលោក " * 50, 501, 651, 651),
    ("Lao", "ສະບາຍດີຊາວໂລກ " * 50, 1250, 901, 901),
    ("Myanmar", "မင်္ဂလာပါကမ္ဘာလောက " * 50, 601, 1101, 1101),
    ("Sinhala", "ආයුබෝවන් ලෝකය " * 50, 552, 801, 801),
    ("emoji", "😀🎉🚀" * 100, 500, 801, 800),
]

MODELS = {
    "o200k_base": [
        "gpt-4o", "gpt-4o-mini-2024-07-18", "chatgpt-4o-latest", "openai/gpt-4.1",
        "gpt-4.5-preview", "openai:gpt-5", "gpt-5.1-codex", "gpt-5-mini", "o1", "o1-preview",
        "openai/o3-mini", "o4-mini", "openai.gpt-oss-120b-1:0", "gpt-oss:20b",
        "ft:gpt-4o-mini-2024-07-18:org::id", "codex-mini-latest",
    ],
    "cl100k_base": [
        "gpt-4", "gpt-4-turbo", "gpt-4-0613", "gpt-4-32k", "azure/gpt-4", "gpt-3.5-turbo",
        "gpt-35-turbo",
    ],
    "claude_v3": [
        "claude-2", "claude-2.1", "anthropic.claude-v2:1", "claude-instant-1.2",
        "claude-3-opus-20240229", "claude-3-5-sonnet-20241022", "claude-3.7-sonnet",
        "claude-sonnet-4-20250514", "claude-opus-4-1", "claude-sonnet-4-5",
        "claude-haiku-4-5-20251001", "claude-opus-4-6", "claude-opus-4.6[1m]",
        "anthropic:claude-sonnet-4-5", "anthropic/claude-opus-4.5", "claude-sonnet-4-5[1m]",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "anthropic.claude-3-sonnet-20240229-v1:0:200k", "claude-sonnet-4@20250514",
        "Claude-Sonnet-4-5", "vertex_ai/claude-opus-4-5@20251101",
    ],
    "claude_v47": [
        "claude-opus-4-7", "claude-opus-4-7@20260101", "claude-opus-4.8[1m]", "claude-opus-5-5",
        "claude-sonnet-5", "claude-fable-5", "eu.anthropic.claude-opus-4-7-20260101-v1:0",
        "claude-opus-10",
    ],
    DEFAULT_FAMILY: [
        None, "", "sonnet", "claude", "claude-latest", "gemini-2.5-pro", "llama-3.3-70b",
        "gpt-j-6b", "gpt-2", "qwen3", "o5", "olmo1", "gpt-", "mistral-large", "\ud800",
        "claude-²",
    ],
}  # fmt: skip


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(ANY_TEXT, FAMILY)
def test_every_str_has_an_estimate_of_at_least_one_token(text, family):
    """Any str, lone surrogates and NULs included, gives >= 1, and only the empty one gives 0."""
    assert estimate_tokens_float(text, family) >= 0.0
    assert (estimate_tokens(text, family) >= 1) == (text != "")


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(LUMPY_TEXT, LUMPY_TEXT, FAMILY)
def test_appending_text_never_lowers_the_estimate(text, more, family):
    """A text never estimates lower than its own beginning, whatever blocks it is cut into."""
    assert estimate_tokens_float(text + more, family) >= estimate_tokens_float(text, family)
    assert estimate_tokens(text + more, family) >= estimate_tokens(text, family)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(LUMPY_TEXT, st.integers(0, 20_000), FAMILY)
def test_chunks_add_up_to_the_whole(text, cut, family):
    """Two chunks differ from the whole text only by the two characters behind the cut."""
    chunks = estimate_tokens_float(text[:cut], family) + estimate_tokens_float(text[cut:], family)
    assert chunks == pytest.approx(estimate_tokens_float(text, family), abs=6.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_through_prose_costs_less_than_a_token(family):
    """A stream of chunks drifts from the whole text by less than one token per chunk."""
    text = "The monitor counts what the agent reads; then it says how full the window is.\n" * 200
    chunks = [text[start : start + 100] for start in range(0, len(text), 100)]
    drift = sum(estimate_tokens_float(chunk, family) for chunk in chunks) - estimate_tokens_float(
        text, family
    )
    assert abs(drift) < len(chunks)


@pytest.mark.parametrize("family", FAMILIES[:-1])
@pytest.mark.parametrize("character", ["x", "=", "é", "漢", "\ud800", "😀"])
def test_block_borders_are_invisible(family, character):
    """Growing a text by one character across a block border changes nothing but that character."""
    sizes = range(8189, 8197)
    grown = [estimate_tokens_float(character * size, family) for size in sizes]
    steps = [after - before for before, after in pairwise(grown)]
    assert steps == pytest.approx([steps[0]] * len(steps), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_megabytes_estimate_in_proportion(family):
    """Ten megabytes of mixed scripts estimate a hundred times what 100 kB do."""
    text = "def f(x): return 'Привет 漢字 😀'\n" * 3200
    part, whole = estimate_tokens(text, family), estimate_tokens(text * 100, family)
    assert whole == pytest.approx(100 * part, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "text", "o200k", "v3", "v47"), KNOWN_COUNTS, ids=lambda v: str(v)[:10]
)
def test_runs_and_rare_scripts_stay_near_the_true_count(name, text, o200k, v3, v47):
    """Runs of one character and scripts most corpora lack are off by less than a factor of two."""
    truth = {"o200k_base": o200k, "claude_v3": v3, "claude_v47": v47}
    for family, true_tokens in truth.items():
        assert 0.5 < estimate_tokens(text, family) / true_tokens < 2.0, (name, family)


@pytest.mark.parametrize(
    ("family", "true_tokens"), [("o200k_base", 761), ("claude_v3", 761), ("claude_v47", 941)]
)
def test_english_prose_stays_near_the_true_count(family, true_tokens):
    """Ordinary prose estimates within 15 percent of the true count."""
    prose = (
        "A context window is what a model can hold. When it is nearly full the agent should finish "
        "what it is doing, write down what remains, and hand the work over to a successor. "
    )
    assert estimate_tokens(prose * 20, family) == pytest.approx(true_tokens, rel=0.15)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("hello", 2), ("x" * 1000, 250), ("aaaa", 1), ("é" * 5, 2), ("😀" * 4, 1)],
)
def test_chars_per_4_counts_characters_and_rounds_up(text, tokens):
    """The family chars/4 is the ceiling of the str's length over four."""
    assert estimate_tokens(text, "chars/4") == tokens


def test_chars_per_4_chunks_are_summed_before_rounding():
    """Two chunks of two characters are one token, not two."""
    assert estimate_tokens_float("aa", "chars/4") + estimate_tokens_float("aa", "chars/4") == 1.0


@pytest.mark.parametrize("estimate", [estimate_tokens, estimate_tokens_float])
@pytest.mark.parametrize("text", ["", "some text"])
def test_an_unknown_family_is_refused_with_the_allowed_ones(estimate, text):
    """A family that does not exist is an error that names those that do, even for no text."""
    with pytest.raises(ConfigurationError, match=r"tokenizer_family='p50k'.*o200k_base.*chars/4"):
        estimate(text, "p50k")


@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_sampling_a_long_text_stays_near_the_full_estimate(family):
    """Eight windows of a long even text give its estimate within 5 percent."""
    text = "".join(f"line {n}: the value of item_{n * 7} is {n * n}\n" for n in range(12_000))
    assert len(text) > 262_144
    full = estimate_tokens(text, family)
    assert estimate_tokens(text, family, sample=True) == pytest.approx(full, rel=0.05)


def test_sampling_leaves_shorter_texts_alone():
    """Up to 262,144 characters `sample` changes nothing."""
    text = ("a few words, then " + "9" * 100) * 2000
    assert estimate_tokens(text, sample=True) == estimate_tokens(text)


@pytest.mark.parametrize(
    ("family", "model"), [(family, model) for family, models in MODELS.items() for model in models]
)
def test_a_model_name_leads_to_its_family(family, model):
    """Every spelling of a model leads to its tokenizer family, the unknown to the cautious one."""
    assert family_for_model(model) == family


@given(
    st.text(max_size=40)
    | st.from_regex(r"(anthropic[./:])?claude[-0-9a-z.@:\[\]]{0,20}", fullmatch=True)
)
def test_any_model_name_leads_to_a_family(model):
    """No model name raises."""
    assert family_for_model(model) in TABLES


def test_the_default_family_is_the_cautious_one():
    """On prose, code and a log the default family estimates highest."""
    for text in (
        "Hand the work over in time. ",
        "for (i = 0; i < n; i++) { sum += a[i]; }\n",
        "12:01 WARN x=7\n",
    ):
        estimates = {family: estimate_tokens(text * 50, family) for family in FAMILIES}
        assert max(estimates, key=estimates.__getitem__) == DEFAULT_FAMILY


def test_weights_are_small_enough_to_be_summed_exactly():
    """No weight can make the sum of one step reach adler32's modulus of 65,521."""
    for pairs, triples, context_unit, blocks, block_unit in TABLES.values():
        assert [len(pairs), len(triples), len(blocks)] == [256, 256, 256]
        assert max(pairs + triples) * 512 < 65_521
        assert context_unit > 0 < block_unit


@pytest.mark.parametrize("classes", [PAIR_CLASSES, TRIPLE_CLASSES])
def test_classes_name_every_printable_ascii_character_once(classes):
    """A character left out, or named twice, would be counted as something it is not."""
    assert sorted("".join(classes)) == sorted("\t\n\r" + "".join(map(chr, range(32, 127))))


def test_importing_the_estimator_loads_nothing_heavy():
    """A hook may import the estimator: none of the slow standard modules comes with it."""
    heavy = {"json", "re", "typing", "dataclasses", "enum", "functools", "logging", "pydantic"}
    code = (
        f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}; "
        f"import ultramon.context.estimator; print(*{heavy!r} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []
