"""What an image costs in tokens, against what requests with one image were billed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.image_tokens import estimate_image_tokens

# The input tokens of requests with one image, published in October 2026, without those of the
# request itself: https://huggingface.co/datasets/JOHNISKING/image-token-cost. From 2,560 pixels on
# the client scaled the image to 2,000 and wrote so in 32 or 40 tokens.
BILLED = {
    (256, 256): (100, 100, 77, 77),
    (512, 512): (361, 361, 308, 308),
    (768, 768): (784, 784, 692, 692),
    (1024, 1024): (1369, 1369, 1229, 1229),
    (1280, 720): (1196, 1196, 1104, 1104),
    (1920, 1080): (1560, 2691, 2448, 2448),
    (1080, 1920): (1560, 2691, 2448, 2448),
    (2560, 1440): (None, None, 4320, 2931),
    (4032, 3024): (None, None, 11_868, 2942),
    (2000, 1125): (1560, 2952, None, None),
    (2000, 1500): (1564, 3888, None, None),
}


@pytest.mark.parametrize(("size", "billed"), BILLED.items())
def test_a_formula_gives_what_was_billed(size, billed):
    """To the token, but where a scaled side could round to either square."""
    models = (
        ("claude-haiku-4-5", None), ("claude-opus-5-5", None), ("gpt-5.5", "original"),
        ("gpt-5.5", "high"),
    )  # fmt: skip
    for (model, detail), tokens in zip(models, billed, strict=True):
        if tokens is not None:
            assert estimate_image_tokens(*size, model, detail) == tokens, model


@pytest.mark.parametrize(
    ("size", "model", "detail", "tokens"),
    [
        # The examples of the providers' pages.
        ((1024, 1024), "gpt-4o", "high", 765),
        ((2048, 4096), "gpt-4o", "high", 1105),
        ((4096, 8192), "gpt-4o", "low", 85),
        ((1024, 1024), "gpt-5.1-codex", None, 630),
        ((1800, 2400), "gpt-4.1-mini", None, 2353),
        ((1024, 1024), "o4-mini", None, 1762),
        ((1024, 1024), "openai/gpt-5.4-nano", None, 2520),
        ((300, 380), "gemini-2.5-pro", None, 258),
        ((960, 540), "models/gemini-2.5-flash", None, 1548),
        ((4032, 3024), "gemini-3-pro-preview", None, 1120),
        ((1024, 1024), "qwen3-coder-plus", None, None),
        ((1024, 1024), None, None, None),
    ],
)
def test_models_of_other_formulas(size, model, detail, tokens):
    """Where none is known, none is guessed."""
    assert estimate_image_tokens(*size, model, detail) == tokens


SIDES = st.integers(1, 100_000)
MODELS = ("claude-haiku-4-5", "claude-opus-5", "gpt-5", "gpt-5.2-codex", "gpt-6", "gemini-2.5-pro")


@given(SIDES, SIDES, st.sampled_from(MODELS))
def test_an_image_of_any_size_has_a_bounded_number_of_tokens(width, height, model):
    """Providers scale down what is larger; Gemini 2 alone cuts it into ever more pieces."""
    tokens = estimate_image_tokens(width, height, model)
    assert tokens >= 1
    assert (
        tokens <= 5_000 or model == "gemini-2.5-pro" or min(width, height) * 9 < max(width, height)
    )
