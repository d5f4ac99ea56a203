"""How many tokens an image has, by the formulas that the providers publish. Knows no file format.

A formula is the provider's; whether the image was sent as it was measured is not known, so the
result is an estimate. `tests/context/test_image_tokens.py` holds what requests were billed.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from ultramon.context.estimator import family_for_model

# https://platform.claude.com/docs/en/build-with-claude/vision: squares of 28 pixels, one token
# each. Models up to 4.6 look at 1,568 pixels and tokens at most, later ones at the second pair.
_CLAUDE_PIXELS = 28
_CLAUDE_LIMITS = {"claude_v3": (1_568, 1_568), "claude_v47": (2_576, 4_784)}

# https://platform.openai.com/docs/guides/images-vision: squares of 32 pixels, with a factor by
# model. 1.2 stands in no table there: it is what requests to GPT-5.2 and later were billed.
_GPT_PIXELS = 32
_GPT_PATCHES, _GPT_LATER_PATCHES, _GPT_ORIGINAL_PATCHES = 1_536, 2_500, 10_000
_GPT_FACTORS = (("nano", 2.46), ("o4-mini", 1.72), ("mini", 1.62), ("", 1.2))
_GPT_LATER = (5, 4)
# By the same page the models before see squares of 512 pixels, with the shorter side at 768.
_GPT_TILES = {"gpt-4": (85, 170), "gpt-5": (70, 140), "o1": (75, 150), "o3": (75, 150)}
_GPT_TILED_MINI = ("gpt-4o-mini", (2_833, 5_667))
_GPT_LAST_TILED = (5, 1)

# https://ai.google.dev/gemini-api/docs/tokens, and the page on media resolution for version 3.
_GEMINI_TILE_TOKENS, _GEMINI_SMALL_PIXELS, _GEMINI_TILE_PIXELS = 258, 384, (256, 768)
_GEMINI_3_TOKENS = 1_120


def estimate_image_tokens(
    width: int, height: int, model: str | None, detail: str | None = None
) -> int | None:
    """Return the tokens of an image.

    Args:
        width: In pixels, at least 1.
        height: In pixels, at least 1.
        model: As a host or provider spells it; None = unknown.
        detail: How closely the model looks at it, as OpenAI names that; None = not stated.

    Returns:
        At least 1; None where no formula is known for the model.
    """
    name = (model or "").lower()
    if "claude" in name:
        return _claude_tokens(width, height, *_CLAUDE_LIMITS[family_for_model(name)])
    if "gemini" in name:
        return _gemini_tokens(width, height, name.rpartition("gemini-")[2])
    name = name.replace("/", ":").rpartition(":")[2]
    if name.startswith(("gpt-", "codex-", "o1", "o3", "o4")):
        return _gpt_tokens(width, height, name, detail)
    return None


def _claude_tokens(width: int, height: int, most_pixels: int, most_tokens: int) -> int:
    def count(longest: int) -> int:
        ratio = longest / max(width, height)
        return math.prod(
            math.ceil(max(1, round(side * ratio)) / _CLAUDE_PIXELS) for side in (width, height)
        )

    # What is too large is scaled down until it fits.
    longest = min(max(width, height), most_pixels)
    if count(longest) > most_tokens:
        longest = bisect_right(range(1, longest + 1), most_tokens, key=count)
    return count(longest)


def _gpt_tokens(width: int, height: int, name: str, detail: str | None) -> int:
    version = _version(name.removeprefix("gpt-"))
    is_small = "mini" in name or "nano" in name
    tiles = next((one for mark, one in _GPT_TILES.items() if name.startswith(mark)), None)
    if name.startswith(_GPT_TILED_MINI[0]):
        tiles, is_small = _GPT_TILED_MINI[1], False
    if tiles is not None and version <= _GPT_LAST_TILED and not is_small:
        return _gpt_tile_tokens(width, height, *tiles, is_low=detail == "low")
    most = _GPT_PATCHES if version < _GPT_LATER or is_small else _GPT_LATER_PATCHES
    if detail == "original" and version >= _GPT_LATER:
        most = _GPT_ORIGINAL_PATCHES
    factor = next(factor for mark, factor in _GPT_FACTORS if mark in name)
    return math.ceil(_gpt_patches(width, height, most) * factor - 1e-9)


def _gpt_patches(width: int, height: int, most: int) -> int:
    across, down = width / _GPT_PIXELS, height / _GPT_PIXELS
    if math.ceil(across) * math.ceil(down) > most:
        ratio = math.sqrt(most / (across * down))
        # Then further, until one side is of whole squares.
        ratio *= min(max(1, math.floor(side * ratio)) / (side * ratio) for side in (across, down))
        across, down = across * ratio, down * ratio
    return math.prod(math.ceil(round(side, 6)) for side in (across, down))


def _gpt_tile_tokens(width: int, height: int, base: int, each: int, *, is_low: bool) -> int:
    if is_low:
        return base
    ratio = min(1.0, 2_048 / max(width, height))
    ratio *= min(1.0, 768 / (min(width, height) * ratio))
    return base + each * math.prod(
        math.ceil(round(side * ratio) / 512) or 1 for side in (width, height)
    )


def _version(name: str) -> tuple[int, int]:
    """Return the numbers that a name begins with: of ``5.4-mini`` 5 and 4; else zeros."""
    major, _, rest = name.partition(".")
    minor = rest[:1] if major.isdigit() else ""
    first = major[:1]
    return (int(first) if first.isdigit() else 0, int(minor) if minor.isdigit() else 0)


def _gemini_tokens(width: int, height: int, version: str) -> int:
    if not version.startswith(("1", "2")):
        return _GEMINI_3_TOKENS
    if max(width, height) <= _GEMINI_SMALL_PIXELS:
        return _GEMINI_TILE_TOKENS
    least, most = _GEMINI_TILE_PIXELS
    side = min(max(int(min(width, height) / 1.5), least), most)
    return _GEMINI_TILE_TOKENS * math.ceil(width / side) * math.ceil(height / side)
