"""Agent ids: which names may become file names."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.errors import InvalidAgentIdError
from ultramon.system.ids import MAX_ID_LENGTH, check_agent_id, generate_agent_id, random_hex

RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")

REFUSED = [
    "", ".", "..", "../x", "../../../etc/passwd", "/etc/x", "a/b", "a\\b", "~", "~root", "a\0b",
    "a\nb", "a\x1b[31m", "-x", "--help", ".hidden", "_x", "x" * 129, "x" * 300, "é" * 130, "é",
    "e\u0301", "\u202eabc", "a\u200bb", "a\ufeff", "CON", "con", "Nul", "nul.txt", "AUX.tar.gz",
    "com1", "COM0.x", "lpt9", "PRN", "a.", "a..", "a ", " a", "a b", "x:stream", "a\ud800",
    "a\r", "a*b", "a?b", 'a"b', "a<b", "a|b", "a%2fb", "a\u2028b", "a\tb", "$HOME", "a;b", "a&b",
    "Ａ", "١٢", None, 5, b"abc", ["a"], 1.5, True,
]  # fmt: skip
ACCEPTED = [
    "a", "A", "0", "scout-1", "a.b", "a..b", "a_b", "a-", "9.json", "x" * 128, "console", "com10",
    "nully", "com", "lpt", "aconx.nul", "550e8400-e29b-41d4-a716-446655440000", "default",
    "session.agent-1",
]  # fmt: skip


@pytest.mark.parametrize("agent_id", REFUSED, ids=ascii)
def test_what_cannot_be_a_file_name_everywhere_is_refused(agent_id):
    """Traversal, control characters, other alphabets, devices and other kinds of value."""
    with pytest.raises(InvalidAgentIdError) as caught:
        check_agent_id(agent_id)
    assert caught.value.agent_id is agent_id
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("agent_id", ACCEPTED)
def test_what_fits_the_rule_is_accepted_unchanged(agent_id):
    """An id is the file name, letter for letter."""
    assert check_agent_id(agent_id) is agent_id


@settings(max_examples=10 * settings().max_examples, deadline=None)
@given(
    st.text(max_size=140)
    | st.text(string.printable, max_size=140)
    | st.text(string.ascii_letters + string.digits + "._-", max_size=140)
    | st.from_regex(DEVICE, fullmatch=True)
)
def test_the_rule_is_the_one_in_the_contract(agent_id):
    """Accepted is exactly: the pattern, no trailing dot, no Windows device; never repaired."""
    allowed = (
        RULE.fullmatch(agent_id) and not agent_id.endswith(".") and not DEVICE.fullmatch(agent_id)
    )
    if allowed:
        assert check_agent_id(agent_id) == agent_id
    else:
        with pytest.raises(InvalidAgentIdError):
            check_agent_id(agent_id)


def test_a_long_id_is_not_repeated_in_full():
    """The error of a megabyte of text is one readable line."""
    with pytest.raises(InvalidAgentIdError, match="has 1000000 characters") as caught:
        check_agent_id("x" * 1_000_000)
    assert len(str(caught.value)) < 400


def test_generated_ids_are_valid_and_differ():
    """A thousand of them are a thousand, and each passes its own rule."""
    made = {generate_agent_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(check_agent_id(agent_id) == agent_id for agent_id in made)
    assert MAX_ID_LENGTH == 128
    assert re.fullmatch("[0-9a-f]{32}", random_hex(16))
