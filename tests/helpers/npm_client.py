"""Clients from npm, pinned and cached, installed once for all tests of this machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from helpers.requirements import missing, require_tool


def install_client(name, *packages, options=()):
    """Return the folder ``node_modules`` with some packages, each with its version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ultramon-tests" / "npm" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules" / ".package-lock.json").exists():  # written last
            options = ["--no-fund", "--no-audit", *options, "--prefix", str(folder)]
            done = subprocess.run(
                [require_tool("npm"), "install", *options, *packages],
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            if done.returncode:
                missing(f"npm cannot install {' '.join(packages)}: {done.stderr[-300:]}")
    require_tool("node")
    return folder / "node_modules"
