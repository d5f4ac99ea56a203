"""Whatever a system answers about a process, it is read or refused, and never taken for another."""

from __future__ import annotations

import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from ultramon.system import libproc, ps_program

WORDS = st.lists(st.binary(max_size=20).filter(lambda word: b"\0" not in word), max_size=6)
VARIABLES = st.lists(
    st.binary(min_size=1, max_size=20).filter(lambda one: b"\0" not in one), max_size=6
)


@given(st.integers(0, 4_102_444_799))
def test_a_time_that_ps_prints_is_read(at):
    """As C's ``%c`` prints it in UTC, up to the year 2099."""
    printed = time.strftime("%b %e %H:%M:%S %Y", time.gmtime(at))
    assert ps_program.parse_start(printed.split()) == at


@given(st.lists(st.text(max_size=12), max_size=6))
def test_other_words_are_no_time(words):
    """And no error either."""
    found = ps_program.parse_start(words)
    assert found is None or isinstance(found, int)


@given(st.binary(min_size=1, max_size=20), st.integers(1, 8), WORDS, VARIABLES)
def test_what_macos_keeps_is_read(path, zeros, words, variables):
    """But for empty words at the beginning: they cannot be told from what fills up the path."""
    path = path.replace(b"\0", b"/")
    words = [b"program", *words]
    texts = b"".join(one + b"\0" for one in (*words, *variables))
    count = len(words).to_bytes(4, sys.byteorder)
    kept = count + path + bytes(zeros) + texts + b"\0ptr_munge=\0"
    assert libproc.parse_arguments(kept) == (words, variables)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_error(data):
    """Words and variables are bytes without a zero, whatever the system wrote."""
    words, variables = libproc.parse_arguments(data)
    assert not any(b"\0" in one for one in (*words, *variables))
