"""Distributions beside ultramon: written into a folder as pip leaves them, or installed by pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from helpers import ROOT

EXTENSIONS = ROOT / "examples" / "extensions"


def write_distribution(
    folder: Path, name: str, group: str, code: str | Path, *entries: str, module: str | None = None
) -> None:
    """Install a distribution of one module, or of one package.

    Args:
        folder: On the path of the Python that is to find it.
        name: Of the distribution.
        group: Of the entry points.
        code: Of the module, or the folder of the package.
        entries: Each as ``name = module:object``.
        module: Its name; default: that of the distribution.
    """
    module = module or name.replace("-", "_")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    if isinstance(code, Path):
        shutil.copytree(code, folder / module)
    else:
        (folder / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))


def install_extension(folder: Path, kind: str) -> None:
    """Install a worked example by pip, without a network: what it needs is there."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
            *("--no-deps", "--no-index", "--no-build-isolation"),
            *("--target", str(folder), str(EXTENSIONS / kind)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
