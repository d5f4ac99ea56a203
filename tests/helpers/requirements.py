"""What a test needs from the machine: skipped with the reason on a laptop, failed under CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def missing(reason: str) -> None:
    """Skip because of what this machine lacks; under ``CI=true`` fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI must provide it", pytrace=False)
    pytest.skip(reason)


def require_tool(name: str) -> str:
    """Return the path of a command, or skip; under ``CI=true`` fail."""
    path = shutil.which(name)
    if path is None:
        missing(f"{name} is not installed")
    return str(path)


def require_root() -> None:
    """Continue only as root: root may become somebody else and plant what others own."""
    if os.geteuid() != 0:
        missing("needs root")


def require_root_mount(directory: Path, options: str = "size=1m") -> None:
    """Mount a tmpfs over a directory, or skip; the caller unmounts it."""
    require_root()
    require_mount("-t", "tmpfs", "-o", options, "tmpfs", str(directory))


def unmount(directory: Path) -> None:
    """Undo `require_root_mount`, whatever still holds the directory open."""
    subprocess.run([require_tool("umount"), "-l", str(directory)], check=True)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Let nobody, not even root, write below a directory from one moment to the next, or skip."""
    require_root()
    # Made read-only where nobody writes: at the directory itself an open file would refuse it.
    with tempfile.TemporaryDirectory(prefix="ultramon-") as name, ExitStack() as stack:
        elsewhere = Path(name)
        require_mount("--bind", str(directory), name)
        stack.callback(unmount, elsewhere)
        require_mount("-o", "remount,ro,bind", name)
        require_mount("--bind", name, str(directory))
        stack.callback(unmount, directory)
        yield


def require_mount(*words: str) -> None:
    """Mount with these arguments of mount(8), or skip."""
    command = [require_tool("mount"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"no mount here: {done.stderr.strip()}")


@contextmanager
def directory_of_nobody() -> Iterator[Path]:
    """Give a directory that an unprivileged user owns and can reach, unlike pytest's own."""
    require_python_as_nobody()
    path = Path(tempfile.mkdtemp(prefix="ultramon-"))
    os.chown(path, NOBODY, NOBODY)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def as_nobody() -> list[str]:
    """Return the start of a command line that runs the rest as an unprivileged user."""
    require_root()
    return [require_tool("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def require_python_as_nobody() -> None:
    """Require that an unprivileged user can run this interpreter, as none can below root's home."""
    command = [*as_nobody(), sys.executable, "-c", ""]
    if subprocess.run(command, cwd="/", capture_output=True, check=False).returncode:
        missing(f"an unprivileged user cannot run {sys.executable}")
