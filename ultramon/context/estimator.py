"""Text to tokens without a tokenizer: one table look-up per character and its neighbours.

The characters around a place mostly decide whether a tokenizer cuts there. So every position gets a
weight by the classes of the last two characters (16 fine classes) and of the last three (6 coarse
classes), a character outside ASCII one more by its Unicode block, and the estimate is the sum. All
weights are >= 0: more text never estimates lower. `ultramon.context.estimator_weights` holds the
tables, fitted per tokenizer family. Standard library only.
"""

from __future__ import annotations

from zlib import adler32

from ultramon.context.estimator_weights import TABLES
from ultramon.errors import ConfigurationError

CHARS_PER_4 = "chars/4"
FAMILIES: tuple[str, ...] = ("o200k_base", "cl100k_base", "claude_v3", "claude_v47", CHARS_PER_4)
DEFAULT_FAMILY = "claude_v47"
"""The family that estimates highest, for unknown models."""

SAMPLED_ABOVE_CHARS = 256 * 1024
_WINDOWS = 8
_WINDOW_CHARS = 2048

# 8 kB keep the integers of one block in the processor's nearest cache.
_BLOCK_CHARS = 8192
_CONTEXT_CHARS = 2

# adler32 started at 0 holds a plain sum of bytes in its low half while the sum stays below 65,521:
# the fastest sum in the standard library (sum(bytes) costs 6 times as much). Context weights
# are at most 127, block weights at most 255.
_CONTEXT_STEP = 512
_BLOCK_STEP = 256

# Learned by exchanging characters between classes until the boundaries of the three tokenizers
# were best predicted. The first class also precedes the text; "?" is every character beyond ASCII.
PAIR_CLASSES = (
    "\n",
    "ehlnorst",
    "aiqu",
    "bcdfgjkmpvwxyz",
    "AEI",
    "BCDFGHJKLMNOPRSTUVWY~",
    "\tQXZ\\^",
    "0123456789",
    "\r ",
    ".]",
    "(),/;=",
    "':<[}",
    '">',
    "!$%&+@`{|",
    "#*-_",
    "?",
)
TRIPLE_CLASSES = (
    "\n?",
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "\t0123456789",
    " ",
    "!\"#$%&'()*+,-./:;<=>@[\\]^_`{|}~\r",
)


def _class_table(classes: tuple[str, ...]) -> bytes:
    control = next(code for code, members in enumerate(classes) if "!" in members)
    table = bytearray([control]) * 256
    for code, members in enumerate(classes):
        for character in members:
            table[ord(character)] = code
    return bytes(table)


_PAIR_TABLE = _class_table(PAIR_CLASSES)
_TRIPLE_TABLE = _class_table(TRIPLE_CLASSES)

# Multiplying the classes, read as one integer, adds each to its shifted neighbours: byte i becomes
# class[i] + 16 class[i-1], or class[i] + 6 class[i-1] + 36 class[i-2]. No byte exceeds 255.
_PAIR_FACTOR = 1 + (16 << 8)
_TRIPLE_FACTOR = 1 + (6 << 8) + (36 << 16)

# Blocks of 128 characters up to U+2FFF, where one alphabet follows the other, coarser ones above.
_BLOCK_TABLE = bytes(
    2 * high if high < 0x30 else 0x60 + ((high - 0x30) >> 1 & ~1) for high in range(256)
)
_UPPER_HALF_TABLE = bytes(low >> 7 for low in range(256))


def pair_codes(ascii_text: bytes) -> bytes:
    """Code each position by the classes of its character and the one before (16 x 16)."""
    classes = int.from_bytes(ascii_text.translate(_PAIR_TABLE), "little")
    return (classes * _PAIR_FACTOR).to_bytes(len(ascii_text) + _CONTEXT_CHARS, "little")


def triple_codes(ascii_text: bytes) -> bytes:
    """Code each position by the classes of its character and the two before (6 x 6 x 6)."""
    classes = int.from_bytes(ascii_text.translate(_TRIPLE_TABLE), "little")
    return (classes * _TRIPLE_FACTOR).to_bytes(len(ascii_text) + _CONTEXT_CHARS, "little")


def block_codes(text: str) -> bytes:
    """Code each UTF-16 unit by its Unicode block; 0 is ASCII."""
    units = text.encode("utf-16-le", "surrogatepass")
    blocks = int.from_bytes(units[1::2].translate(_BLOCK_TABLE), "little")
    halves = int.from_bytes(units[::2].translate(_UPPER_HALF_TABLE), "little")
    return (blocks + halves).to_bytes(len(units) // 2, "little")


def masked(text: str) -> bytes:
    """Return one ASCII byte per character: "?" for every one outside ASCII, "!" for a real "?"."""
    return text.replace("?", "!").encode("ascii", "replace")


def _sum(weights: bytes, step: int) -> int:
    if len(weights) <= step:
        return adler32(weights, 0) & 0xFFFF
    return sum(
        [
            adler32(weights[start : start + step], 0) & 0xFFFF
            for start in range(0, len(weights), step)
        ]
    )


def _weigh(text: str, known_chars: int, family: str) -> float:
    """Weigh a short text whose first `known_chars` characters are context, already weighed."""
    pair_weights, triple_weights, context_unit, block_weights, block_unit = TABLES[family]
    data = masked(text)
    end = len(data)
    weights = (
        pair_codes(data).translate(pair_weights)[known_chars:end]
        + triple_codes(data).translate(triple_weights)[known_chars:end]
    )
    tokens = _sum(weights, _CONTEXT_STEP) * context_unit
    if not text.isascii():
        blocks = block_codes(text[known_chars:]).translate(block_weights)
        tokens += _sum(blocks, _BLOCK_STEP) * block_unit
    return tokens


def check_family(family: str) -> str:
    """Return a tokenizer family unchanged.

    Raises:
        ConfigurationError: The family is not one of `FAMILIES`.
    """
    if family not in FAMILIES:
        raise ConfigurationError("tokenizer_family", family, f"one of {', '.join(FAMILIES)}")
    return family


def estimate_tokens_float(text: str, family: str = DEFAULT_FAMILY) -> float:
    """Estimate the tokens of a text, unrounded, to be summed with others and rounded once.

    Never negative, and never lower for a longer text with the same beginning.

    Args:
        text: Any str, lone surrogates included.
        family: One of `FAMILIES`.

    Returns:
        Tokens, 0.0 for the empty text; `len(text) / 4` for ``chars/4``.

    Raises:
        ConfigurationError: The family is not one of `FAMILIES`.
    """
    if family == CHARS_PER_4:
        return len(text) / 4
    check_family(family)
    if not text:
        return 0.0
    if len(text) <= _BLOCK_CHARS:
        return _weigh(text, 0, family)
    tokens = _weigh(text[:_BLOCK_CHARS], 0, family)
    for start in range(_BLOCK_CHARS, len(text), _BLOCK_CHARS):
        block = text[start - _CONTEXT_CHARS : start + _BLOCK_CHARS]
        tokens += _weigh(block, _CONTEXT_CHARS, family)
    return tokens


def estimate_tokens(text: str, family: str = DEFAULT_FAMILY, *, sample: bool = False) -> int:
    """Estimate the tokens of a text as a whole number.

    Args:
        text: Any str, lone surrogates included.
        family: One of `FAMILIES`; default the one that estimates highest.
        sample: Above 262,144 characters weigh only eight evenly spread windows of 2,048. Takes a
            fixed time, about 0.1 ms; a longer text may then estimate lower.

    Returns:
        Tokens: 0 for the empty text, at least 1 otherwise; ``chars/4`` rounds up.

    Raises:
        ConfigurationError: The family is not one of `FAMILIES`.
    """
    if family == CHARS_PER_4:
        return -(-len(text) // 4)
    if sample and len(text) > SAMPLED_ABOVE_CHARS:
        tokens = _sampled(text, family)
    else:
        tokens = estimate_tokens_float(text, family)
    return max(round(tokens), 1) if text else 0


def _sampled(text: str, family: str) -> float:
    stride = (len(text) - _WINDOW_CHARS) // (_WINDOWS - 1)
    starts = range(0, stride * _WINDOWS, stride)
    seen = sum([estimate_tokens_float(text[at : at + _WINDOW_CHARS], family) for at in starts])
    return seen * len(text) / (_WINDOWS * _WINDOW_CHARS)


def family_for_model(model: str | None) -> str:
    """Return the tokenizer family of a model.

    Understands provider prefixes (``openai:``, ``anthropic/``), the spellings of Bedrock and
    Vertex, dates, and suffixes such as ``[1m]``.

    Args:
        model: The model's name as a host or provider spells it; None = unknown.

    Returns:
        The family; `DEFAULT_FAMILY` for an unknown model.
    """
    if not model:
        return DEFAULT_FAMILY
    name = model.lower()
    _, claude, rest = name.partition("claude")
    if claude:
        version = _claude_version(rest)
        return "claude_v3" if version is not None and version < (4, 7) else "claude_v47"
    _, gpt, rest = name.partition("gpt-")
    if gpt:
        return _gpt_family(rest)
    for part in name.replace("/", ":").split(":"):
        if part.startswith("codex-mini") or part.partition("-")[0] in ("o1", "o3", "o4"):
            return "o200k_base"
    return DEFAULT_FAMILY


def _gpt_family(version: str) -> str:
    if version.startswith(("4o", "4.1", "4.5", "5", "oss")):
        return "o200k_base"
    if version.startswith(("3.5", "35")) or (version[:1] == "4" and version[1:2] in ("", "-", ":")):
        return "cl100k_base"
    return DEFAULT_FAMILY


def _claude_version(rest: str) -> tuple[int, int] | None:
    """Return (major, minor) from the text after "claude"; a date is not a minor version."""
    import re

    number = r"v?([0-9]{1,2})(?=[-.@:_[]|\Z)"
    found = re.search(rf"(?:^|[-.@:_[]){number}(?:[-.@:_[]{number})?", rest)
    return (int(found[1]), int(found[2] or 0)) if found else None
