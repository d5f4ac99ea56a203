"""What hooks use instead of `os`, which costs them too much to load, does the same."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

posix_paths = pytest.importorskip("ultramon.system.posix_paths")

PATHS = st.text(st.sampled_from("/.a~"), max_size=8)
IN_A_HOOK = """
import sys
sys.path.append(sys.argv[1])
from ultramon.system.lean_os import os
from ultramon.system.locks import os as same
assert os is same and "os" not in sys.modules
given = [os.sep, os.curdir, os.environ["WORD"], os.path.join("a", "b"), "os" in sys.modules]
import posix, os as real
wrong = [name for name in dir(posix) if not name.startswith("_") and name != "environ"
         and getattr(os, name) != getattr(real, name)]
assert os.environ == real.environ and os.linesep == real.linesep
assert os.path.splitext("a.b") == ("a", ".b")
print(ascii([given, wrong]))
"""


@given(PATHS, PATHS)
def test_paths_are_joined_split_and_resolved_as_ever(one, other):
    """Of any text, the odd ones included."""
    assert posix_paths.join(one, other) == os.path.join(one, other)
    for name in ("dirname", "basename", "abspath", "expanduser", "exists", "lexists"):
        assert getattr(posix_paths, name)(one) == getattr(os.path, name)(one), name


def test_files_are_told_apart_as_ever(tmp_path):
    """By device and inode, under whatever name, and a link is seen without what it leads to."""
    (tmp_path / "one").touch()
    os.link(tmp_path / "one", tmp_path / "two")
    (tmp_path / "three").symlink_to(tmp_path / "gone")
    one, two, three = (os.lstat(tmp_path / name) for name in ("one", "two", "three"))
    assert posix_paths.samestat(one, two)
    assert not posix_paths.samestat(one, three)
    assert posix_paths.lexists(str(tmp_path / "three"))
    assert not posix_paths.exists(str(tmp_path / "three"))
    assert not posix_paths.lexists("with a \0")


def test_a_process_without_os_gets_the_same_names():
    """Every call of the system and the environment, whatever its bytes; the rest loads `os`."""
    package = os.path.dirname(os.path.dirname(sys.modules["ultramon"].__file__))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IN_A_HOOK, package],
        env={b"WORD": b"f\xc3\xbcr \xff", b"LANG": b"C.UTF-8"},
        capture_output=True,
        check=True,
    )
    shown = ["/", ".", "für \udcff", "a/b", False]
    assert done.stdout.decode().strip() == ascii([shown, []])


def test_every_other_process_has_the_real_one():
    """Nothing is different for the SDK and the command line."""
    from ultramon.system import lean_os

    assert lean_os.os is os
