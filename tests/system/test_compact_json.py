"""JSON without `json`: the same values, the same refusals, in a bare interpreter too."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.system.compact_json import dumps, leading_members, loads

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
BROKEN = [
    "", " ", "{", "}", "[1,", "[1 2]", '{"a"}', '{"a":}', '{"a":1,}', "{a:1}", "'a'", '"a', '"\\x"',
    '"\\ud8"', '"a\nb"', "nul", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "+1", ".5",
    "1.", "0x1", "1 2", "{} {}", "null,", "\ufeff{}", "9" * 5000, "[" * 100_000, '{"a":' * 100_000,
    "\0", "\x0b1",
]  # fmt: skip


@given(values)
def test_a_value_comes_back_as_it_went(value):
    """What is encoded is ASCII, is what `json` reads, and decodes to the same value."""
    text = dumps(value)
    assert text.isascii()
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert json.loads(text) == value
    assert text == json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: ascii(text[:20]))
def test_what_is_not_exactly_one_value_raises_value_error(text):
    """Torn, trailing, too deep, too long, not a number: ValueError and never another exception."""
    with pytest.raises(ValueError):
        loads(text)


@pytest.mark.parametrize("data", [b"\xff", b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", b'{"a":"\xc3'])
def test_bytes_that_are_not_plain_utf8_raise_value_error(data):
    """Strict UTF-8 without a mark, as everything that ultramon writes."""
    with pytest.raises(ValueError):
        loads(data)


@given(st.binary(max_size=60) | values.map(dumps).map(str.encode), st.integers(0, 60))
def test_reading_never_raises_anything_else(data, cut):
    """Any bytes, and any beginning of a value, are a value or a ValueError."""
    try:
        loads(data[:cut])
    except ValueError:
        return


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_without_a_json_form_are_refused(number):
    """No reader in another language could take them."""
    with pytest.raises(ValueError):
        dumps({"a": [number]})


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), b"x", {("a", "b"): 1}, {"a": 1j}],
    ids=["a set", "an object", "bytes", "a key that is no text", "a complex number"],
)
def test_values_without_a_json_form_are_refused(value):
    """Nothing is turned into text by guessing."""
    with pytest.raises(TypeError):
        dumps(value)


def test_a_value_that_contains_itself_is_refused():
    """Endless nesting is an error, not a crash."""
    knot = []
    knot.append(knot)
    with pytest.raises(ValueError, match="nested too deeply"):
        dumps(knot)


def test_space_around_a_value_is_allowed():
    """A final newline, as editors leave it, is no damage."""
    assert loads(b' \t{"a": 1}\r\n') == {"a": 1}


def test_nothing_heavy_is_imported_and_broken_text_still_raises_value_error():
    """Without the json package loaded, CPython's scanner cannot even name its own error."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from ultramon.system.compact_json import dumps, loads\n"
        "value = {'a': [1, 2.5, None, True, 'é']}\nassert loads(dumps(value)) == value\n"
        "heavy = {'json', 'typing', 're', 'enum', 'dataclasses'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        f"for text in {BROKEN!r}:\n"
        "    try:\n        loads(text)\n"
        "    except ValueError:\n        continue\n"
        "    raise SystemExit(f'accepted {text[:20]!r}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=code, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@given(st.dictionaries(st.text(), values, max_size=5), st.data())
def test_what_is_left_of_a_cut_object_is_its_first_members(value, data):
    """Whole members in their order, none that was cut, and all but the last of a whole object."""
    text = dumps(value)
    cut = data.draw(st.integers(1, len(text)))
    found = leading_members(text[:cut])
    names = list(value)
    assert list(found) == names[: len(found)]
    assert all(found[name] == value[name] for name in found)
    if cut == len(text):
        assert found == value


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("{", {}), ("{}", {}), (" \t\r\n{ ", {}), ('{"a"', {}), ('{"a":', {}), ('{"a":1', {}),
        ('{"a":1,', {"a": 1}), ('{"a":1}', {"a": 1}), ('{"a":12', {}), ('{"a":"x', {}),
        ('{"a":1.', {}), ('{"a":1.5e', {}), ('{"a":1.5E+', {}), ('{"a":1,"b":2e-', {"a": 1}),
        ('{"a":"x"', {}), ('{"a":"x",', {"a": "x"}), ('{"a":tru', {}), ('{"a":{"b":[1,', {}),
        ('{ "a" : [ 1 , 2 ] , "b" : {', {"a": [1, 2]}), ('{"a":1,"a":2,', {"a": 2}),
        ('{"a":1{"b":2}', {"a": 1}), ('{"a":1 "b":2}', {"a": 1}), ('{"a":1]', {"a": 1}),
        ('{,"a":1}', {}), ("{5:1}", {}), ("{[]:1}", {}), ('{"a" 1}', {}), ("{'a':1}", {}),
        ('{"a":1,"b":NaN,"c":2}', {"a": 1}), ('{"a":1,"b":1e999,"c":2}', {"a": 1}),
        ('{"a":1,"b":"\\ud8","c":2}', {"a": 1}), ('{"a":1,"b":"\n","c":2}', {"a": 1}),
        ('{"a":1,"b":' + "[" * 100_000, {"a": 1}), ('{"a":1,"b":' + "9" * 5000 + "}", {"a": 1}),
        ('{"a":1} and more', {"a": 1}),
    ],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_members_end_where_the_text_makes_no_sense(text, members):
    """What stands before the first fault is kept, and nothing behind it is guessed."""
    assert leading_members(text) == members


@pytest.mark.parametrize("text", ["", " ", "[", "x{", "null", '"{"', "\ufeff{}", "5"])
def test_a_text_that_begins_no_object_has_no_members(text):
    """The caller must know that there is nothing to expect."""
    with pytest.raises(ValueError, match="not a JSON object"):
        leading_members(text)


@given(st.text(alphabet='{}[]",:\\ \n1-eEtrufalsn\ud800', max_size=40))
def test_taking_members_never_raises_anything_else(text):
    """Any text."""
    assert isinstance(leading_members("{" + text), dict)
