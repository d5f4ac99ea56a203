"""The ways in which processes are found, for tests: ``/proc``, the library of macOS, ``ps``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ultramon.system import libproc, processes

WAYS = ("proc", "libproc", "ps")
_SOURCE = Path(__file__).resolve().parents[1] / "data" / "mac_library.c"


def compile_mac_library(folder, proc="/proc"):
    """Return a library that answers on Linux as the one of macOS does; None on macOS itself."""
    if sys.platform == "darwin":
        return None
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
    if way == "proc" and not processes.has_proc():
        pytest.skip("this system has no /proc")
    if way != "proc":
        monkeypatch.setattr(processes, "PROC", "/nowhere")
    if way == "libproc":
        monkeypatch.setattr(libproc, "LIBRARY", library and str(library))
    elif way == "ps":
        monkeypatch.setattr(libproc, "LIBRARY", "/nowhere")


def forget():
    """Have the library be asked anew by the next test."""
    libproc.forget()


_SCRIPT = """set -e
mount --rbind /proc "$PROC"
mount -t tmpfs none /proc
for program in ps sysctl; do
  mount --bind "$STAND_INS/$program" "$(readlink -f "$(command -v $program)")"
done
[ ! -e "$STAND_INS/etc" ] || mount --bind "$STAND_INS/etc" /etc
exec "$@"
"""
_PS = """#!/bin/sh
exec unshare --mount sh -c 'mount --rbind {proc} /proc && exec {ps} "$@"' ps "$@"
"""
_SYSCTL = """#!/bin/sh
[ "$*" = "-n kern.bootsessionuuid" ] && tr a-f A-F <{proc}/sys/kernel/random/boot_id
"""


def system_without_proc(way, folder):
    """Return the words before a command, and its variables, so that it runs without ``/proc``.

    Every program that it starts runs so too. Skips where this user may not hide ``/proc``.

    Args:
        way: ``libproc``, with the library of macOS ahead of the C library, which takes SO_PEERCRED
            away as well; or ``ps``, with the programs as they are on macOS.
        folder: An empty directory.
    """
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc"]
    programs = [shutil.which(one) for one in ("unshare", "ps", "sysctl")]
    if not all(programs) or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this user may not hide /proc, or a program is missing")
    proc = folder / "proc"
    proc.mkdir()
    ps = shutil.copy(os.path.realpath(programs[1]), folder / "real-ps")
    for name, text in (("ps", _PS), ("sysctl", _SYSCTL)):
        (folder / name).write_text(text.format(proc=proc, ps=ps))
        (folder / name).chmod(0o755)
    environ = {"PROC": str(proc), "STAND_INS": str(folder)}
    if way == "libproc":
        # Ahead of all libraries of all programs, whatever variables they are started with.
        shutil.copytree("/etc", folder / "etc", symlinks=True)
        (folder / "etc" / "ld.so.preload").write_text(f"{compile_mac_library(folder, proc)}\n")
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh"], {**os.environ, **environ}
