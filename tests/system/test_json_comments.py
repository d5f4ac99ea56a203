"""Settings files with comments: read without them, edited around them."""

from __future__ import annotations

import json
import re

import pytest
from helpers.client_home import json_objects, json_values
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.calls.host_settings import read_layers
from ultramon.hosts.install.json_edit import JsonText, comparable
from ultramon.system.json_comments import comment_spans, without_comments

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\]:,]+|[{}\[\]:,]|\s+')
COMMENTS = (
    "//{}, }} \" ]\n", "  //{} /* more\r\n", "/*{}, {{ \" */", "/*{}*/", "/*{}\n  b */",
    "\n  //{} on its own line\n  ",
)  # fmt: skip


@st.composite
def commented(draw, values=json_objects):
    """A value, and a text of it with comments wherever they may stand."""
    value = draw(values)
    text = json.dumps(value, indent=draw(st.sampled_from([None, 2])))
    pieces = []
    for token in _TOKENS.findall(text):
        if draw(st.integers(0, 5)) == 0:
            pieces.append(draw(st.sampled_from(COMMENTS)).format(len(pieces)))
        pieces.append(token)
    return value, "".join(pieces)


def comments_in(text):
    return [text[start:end] for start, end in comment_spans(text)]


@given(commented())
def test_a_text_without_its_comments_says_the_same(found):
    """At the same places: an error names the line and column of the file."""
    value, text = found
    bare = without_comments(text)
    assert json.loads(bare) == value
    assert len(bare) == len(text)
    assert [at for at, one in enumerate(bare) if one == "\n"] == [
        at for at, one in enumerate(text) if one == "\n"
    ]


@given(found=commented(), added=json_values)
def test_what_is_added_beside_comments_can_be_taken_out_again(found, added):
    """Every comment stays where it is, and the old text comes back but for white space."""
    value, text = found
    document = JsonText(text, has_comments=True)
    document.add((), added, "ours alone")
    assert json.loads(without_comments(document.text)) == {**value, "ours alone": added}
    assert comments_in(document.text) == comments_in(text)
    document.remove(("ours alone",))
    assert "".join(document.text.split()) == "".join(text.split())
    assert comparable(document.text, has_comments=True) == comparable(text, has_comments=True)


@given(found=commented(json_objects.filter(bool)), data=st.data())
def test_removing_and_replacing_keep_the_comments_around(found, data):
    """Only those inside of a value go with it."""
    value, text = found
    key = data.draw(st.sampled_from(sorted(value)))
    rest = {name: one for name, one in value.items() if name != key}
    document = JsonText(text, has_comments=True)
    document.remove((key,))
    assert json.loads(without_comments(document.text)) == rest
    before, left = comments_in(text), comments_in(document.text)
    inside = [at for at, one in enumerate(before) if one not in left]
    assert not inside or inside == [*range(inside[0], inside[-1] + 1)]
    assert [one for one in before if one in left] == left
    document = JsonText(text, has_comments=True)
    document.replace((key,), {"new": 1})
    assert json.loads(without_comments(document.text)) == {**value, key: {"new": 1}}


SETTINGS = """\
// mine
{
  "ui": {"theme": "http://x // no comment"}, /* the look */
  "model": {
    "compressionThreshold": 0.3 // early
  } // the end
  // "off": true
}
"""


def test_a_file_with_comments_comes_back_to_the_byte():
    """A new member is the last one; comments at the end of a line stay with theirs."""
    document = JsonText(SETTINGS, has_comments=True)
    document.add((), {}, "hooks")
    document.add(("hooks",), [1], "Stop")
    document.add(("model",), 5, "most")
    assert '"compressionThreshold": 0.3, // early\n    "most": 5\n' in document.text
    assert '  }, // the end\n  // "off": true\n  "hooks": {' in document.text
    document.remove(("hooks",))
    document.remove(("model", "most"))
    assert document.text == SETTINGS


def test_a_member_changes_among_its_comments():
    """What a person wrote into an object of ultramon's stays there."""
    document = JsonText('{"a": {"b": 1, // slow\n  "c": 2 /* two */, "d": 3}}', has_comments=True)
    document.replace(("a",), {"b": 5, "c": 2, "e": 4})
    assert document.text == '{"a": {"b": 5, // slow\n  "c": 2, /* two */\n  "e": 4}}'


@pytest.mark.parametrize(
    "text",
    ["{} // x\n}", "{ /* open }", '{"a": 1,} // trailing comma', "// nothing", '{"a": "x\n//"}',
     "{} / /", "# other\n{}"],
)  # fmt: skip
def test_what_the_client_refuses_is_refused(text):
    """A comment is skipped, and nothing is guessed."""
    with pytest.raises(ValueError):
        JsonText(text, has_comments=True)


def test_comments_are_refused_where_the_client_takes_none():
    """By default a file is JSON."""
    with pytest.raises(json.JSONDecodeError, match="line 1 column 1"):
        JsonText("// x\n{}")


def test_a_comment_that_somebody_moved_or_changed_is_a_change():
    """Otherwise the backup would be put in the place of the newer file."""
    texts = [
        '{"a": 1, "b": 2} // x', '{"a": 1, "b": 2} // y', '{"a": 1, /* x */ "b": 2}',
        '{"a": 1, "b": 2}', '{"a": /* x */ 1, "b": 2}', '{"a": 1, "b": /* x */ 2}',
    ]  # fmt: skip
    found = [comparable(text, has_comments=True) for text in texts]
    assert [found.index(one) for one in found] == [0, 1, 2, 3, 2, 5]
    assert comparable('{"a":1}//x ', has_comments=True) == comparable(
        '{ "a": 1.0 }\n //x', has_comments=True
    )


def test_settings_with_comments_are_read(tmp_path):
    """Only where the client reads them too."""
    path = tmp_path / "settings.json"
    path.write_text(SETTINGS)
    assert list(read_layers([str(path)])) == []
    (found,) = read_layers([str(path)], may_have_comments=True)
    assert found["model"] == {"compressionThreshold": 0.3}
