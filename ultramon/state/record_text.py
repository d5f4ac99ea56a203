"""A stored state as indented JSON, in a fifth of the time that decoding and encoding it takes.

For lists of thousands of states. The text of a state already holds its values: each is checked by
its shape and copied. A state that `encode_state` would have written differently is left to others.
"""

from __future__ import annotations

import re
from json import dumps
from typing import TYPE_CHECKING

from ultramon.state.record import FIELDS, SCHEMA
from ultramon.system import compact_json
from ultramon.system.timestamps import parse_minute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.state.record import StateRecord

MARGIN = " " * 4
"""What `state_text` puts before each line but the first: the state is an item of a member."""
_MEMBER = f"\n{MARGIN}  "
_INNER = f"{_MEMBER}  "
_INMOST = f"{_INNER}  "
_DEEPEST = f"{_INMOST}  "

# Without quotes, backslashes and braces inside, and no comma at the end, text can be taken apart
# at its quotes, commas and braces.
_PLAIN = r"[ !#-\[\]-z|~]"
_STRING = rf'"{_PLAIN}*+(?<!,)"'
# Of few digits, so that there is no shorter way to write it.
_NUMBER = r"(?:[1-9][0-9]{0,9}|0)(?:\.(?:[0-9]{0,3}[1-9]|0))?"
_PAIR = f"{_STRING}:(?:{_STRING}|{_NUMBER}|true|false|null)"
_PAIRS = f"{_PAIR}(?:,{_PAIR})*+"
_FLAT = rf"\{{{_PAIRS}\}}"
_is_flat = re.compile(_FLAT).fullmatch
_is_list_of_flat = re.compile(rf"\[{_FLAT}(?:,{_FLAT})*+\]").fullmatch
_find_rungs = re.compile(
    rf'\{{({_PAIRS}),"rungs":\{{(?:"({_STRING[1:]}:{_FLAT}(?:,{_STRING}:{_FLAT})*+))?\}}\}}'
).fullmatch

_BRACES = r"\{[^{}]*+\}"
for _ in range(2):  # the depth of the rungs in a ladder
    _BRACES = rf"\{{[^{{}}]*+(?:{_BRACES}[^{{}}]*+)*+\}}"
_SHAPES = {
    "int": r"-?[1-9][0-9]{0,17}|0",
    "str": r'"[ !#-\[\]-~]*+(?:\\(?:["\\bfnrt]|u(?!00[0-7])[0-9a-f]{4})[ !#-\[\]-~]*+)*+"',
    "bool": "true|false",
    "number": r"(?:[1-9][0-9]{0,14}|0)(?:\.[0-9]{1,17})?",
    "time": r'"[-0-9]{10}T[0-9:]{6}[0-5][0-9]\.[0-9]{3}Z"',
    "dict": _BRACES,
    "list": r"\[[^][]*+\]",
}
_KINDS = [kind.rstrip("?") for _, _, kind in FIELDS[1:]]
_TIMES = [at for at, kind in enumerate(_KINDS) if kind == "time"]
_NUMBERS = [at for at, kind in enumerate(_KINDS) if kind == "number"]
_FORECAST = [attribute for attribute, _, _ in FIELDS[1:]].index("forecast")
_NESTED = [at for at, kind in enumerate(_KINDS) if kind in ("dict", "list")]
_shape: list[re.Pattern[str]] = []
_FORM = f'{{{{{_MEMBER}"schema": {SCHEMA}' + "".join(
    f',{_MEMBER}"{name}": {{}}' for _, name, _ in FIELDS[1:]
)
_MAX_KNOWN, _MAX_KNOWN_CHARS = 1024, 1024
_known: dict[str, str] = {}


def _compile() -> re.Pattern[str]:
    members = [f'"schema":{SCHEMA}']
    for _, name, kind in FIELDS[1:]:
        shape = _SHAPES[kind.rstrip("?")]
        members.append(f'"{name}":({shape}|null)' if kind.endswith("?") else f'"{name}":({shape})')
    _shape.append(re.compile(r"\{" + ",".join(members)))
    return _shape[0]


def state_text(record: StateRecord, others: Mapping[str, object]) -> str | None:
    """Return the state of an undecoded record as `json.dumps` with ``indent=2`` writes it.

    Args:
        record: As `ultramon.state.record_head.decode_head` made it.
        others: Further members for the end; no dicts and lists.

    Returns:
        None where the record is decoded, or its text has a form of its own.
    """
    members = state_members(record)
    return None if members is None else members + further_members(others)


def further_members(others: Mapping[str, object]) -> str:
    """Return the end of `state_text`, from the last member of the state itself on."""
    further = [f',{_MEMBER}"{name}": {compact_json.dumps(others[name])}' for name in others]
    return f"{''.join(further)}\n{MARGIN}}}"


def state_members(record: StateRecord) -> str | None:
    """Return the beginning of `state_text`, which changes with the state only."""
    shape = _shape[0] if _shape else _compile()
    found = shape.fullmatch(record.undecoded_body.decode("ascii", "replace"))
    if found is None:
        return None
    values = list(found.groups())
    for at in _TIMES:
        if values[at] != "null" and parse_minute(values[at][1:18]) is None:
            return None
    for at in _NUMBERS:
        text = values[at]
        if "." in text and repr(float(text)) != text:
            return None
    for at in _NESTED:
        text = values[at]
        if text != "null":
            indented = _known.get(text) or _indent(text, is_forecast=at == _FORECAST)
            if indented is None:
                return None
            values[at] = indented
    return _FORM.format(*values)


def _indent(text: str, *, is_forecast: bool) -> str | None:
    """Return a nested value with its line breaks, None for one that has to be decoded."""
    if _is_flat(text):
        return f"{{{_INNER}{_spread(text[1:-1], _INNER)}{_MEMBER}}}"
    if _is_list_of_flat(text):
        items = _spread(text[2:-2], _INMOST)
        items = items.replace("},{", f"{_INNER}}},{_INNER}{{{_INMOST}")
        return f"[{_INNER}{{{_INMOST}{items}{_INNER}}}{_MEMBER}]"
    found = _find_rungs(text)
    if found is not None:
        members, rungs = found.groups("")
        shown = f",{_INMOST}".join(
            f'"{_spread(rung, _DEEPEST).replace("{", f"{{{_DEEPEST}")}{_INMOST}}}'
            for rung in rungs[:-1].split('},"')
        )
        shown = f"{{{_INMOST}{shown}{_INNER}}}" if rungs else "{}"
        return f'{{{_INNER}{_spread(members, _INNER)},{_INNER}"rungs": {shown}{_MEMBER}}}'
    # A forecast of another shape may make no sense.
    return None if is_forecast else _indent_any(text)


def _indent_any(text: str) -> str | None:
    try:
        indented = dumps(compact_json.loads(text), indent=2).replace("\n", _MEMBER)
    except ValueError:
        return None
    # The ladders of a fleet are few.
    if len(text) <= _MAX_KNOWN_CHARS:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[text] = indented
    return indented


def _spread(members: str, line: str) -> str:
    return members.replace(',"', f',{line}"').replace('":', '": ')
