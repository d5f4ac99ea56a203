"""Compact JSON without the import of `json`, which costs a hook 7 ms.

Uses the C scanner and encoder of CPython, and `json` where they are missing or have another shape.
Strict: no NaN, no infinity, nothing after the value.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHITESPACE = " \t\n\r"
_WHITESPACE_CHARACTERS = frozenset(_WHITESPACE)
_INFINITY = float("inf")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if number in (_INFINITY, -_INFINITY):
        raise ValueError(f"{text} is too large for a JSON number")
    return number


class _ScannerContext:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_finite_float)
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 - the C scanner only looks the attribute up


def _not_serializable(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_ScannerContext())  # type: ignore[arg-type]
    _encode = make_encoder(
        None, _not_serializable, encode_basestring_ascii, None, ":", ",", False, False, False
    )
    # They are private to CPython: their results are checked before they are used.
    if _scan('{"a":[1.5]}', 0) != ({"a": [1.5]}, 11) or "".join(_encode([1.5, "é"], 0)) != (
        '[1.5,"\\u00e9"]'
    ):
        raise ImportError("the private JSON accelerator behaves differently here")
except (ImportError, TypeError, ValueError, StopIteration):
    import json

    _scan = getattr(  # noqa: B009 - undocumented, so the type checker does not know it
        json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant), "scan_once"
    )

    def _encode(value: object, _indent: int, /) -> tuple[str, ...]:  # type: ignore[misc]
        return (json.dumps(value, separators=(",", ":"), allow_nan=False),)


def loads(text: str | bytes) -> Any:
    """Decode one JSON value.

    Args:
        text: The value as text, or as strict UTF-8 without a byte order mark.

    Returns:
        The value: dict, list, str, int, float, bool or None.

    Raises:
        ValueError: It is not exactly one JSON value, not UTF-8, or nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    text = text.strip(_WHITESPACE)
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise ValueError(f"not JSON at character {stop.value}") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except SystemError:
        # CPython 3.11 looks up json.JSONDecodeError for a broken string and finds no such module.
        raise ValueError("not JSON: a string is broken") from None
    if end != len(text):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def leading_members(text: str) -> dict[str, Any]:
    """Return the complete members of a truncated JSON object.

    Raises:
        ValueError: The text does not begin like an object.
    """
    members: dict[str, Any] = {}
    at = _skip_whitespace(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    before = "{"
    try:
        while text[at : at + 1] == before:
            before = ","
            key, at = _scan(text, _skip_whitespace(text, at + 1))
            at = _skip_whitespace(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                break
            value, at = _scan(text, _skip_whitespace(text, at + 1))
            at = _skip_whitespace(text, at)
            # A number may continue behind the cut, also one whose exponent has no digit yet.
            if at < len(text) and text[at] not in ".eE":
                members[key] = value
    except (StopIteration, ValueError, RecursionError, SystemError):
        pass
    return members


def _skip_whitespace(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITESPACE_CHARACTERS:
        at += 1
    return at


def dumps(value: object) -> str:
    """Encode a value as compact ASCII JSON.

    Raises:
        ValueError: A number is NaN or infinite, or the value contains itself.
        TypeError: A part of it has no JSON form.
    """
    try:
        return "".join(_encode(value, 0))
    except RecursionError:
        raise ValueError("value nested too deeply for JSON") from None
