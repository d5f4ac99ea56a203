"""The ways in which processes are found, for tests: ``/proc``, the library of macOS, ``ps``."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ultramon.system import libproc, processes

WAYS = ("proc", "libproc", "ps")
_SOURCE = Path(__file__).resolve().parents[1] / "data" / "mac_library.c"


def compile_mac_library(folder, proc="/proc"):
    """Return a library that answers on Linux as the one of macOS does."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, for the library that stands for that of macOS")
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    names = (f'-DPROC="{proc}"', f"-DBOOT_MICROSECONDS={int(booted_at * 1e6)}ULL")
    library = folder / "mac_library.so"
    options = ("-Wall", "-Werror", "-shared", "-fPIC", *names)
    subprocess.run([compiler, *options, "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def take(way, monkeypatch, library):
    """Have this process find processes in one way, with those before it switched off."""
    monkeypatch.setattr(processes, "_chosen", [])
    forget()
    if way != "proc":
        monkeypatch.setattr(processes, "PROC", "/nowhere")
    if way == "libproc":
        monkeypatch.setattr(libproc, "LIBRARY", str(library))


def forget():
    """Have the library be asked anew by the next test."""
    libproc.forget()
