"""Write tests/data/installations-COMMIT.json: what an earlier ultramon installed, host by host.

Each installation is made by the code of that commit in a home of its own; paths of this machine
become names such as ``@ROOT@``. Run it once for a commit, and keep the file:
python scripts/record_installations.py COMMIT
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CODE_SUFFIX = ".code"
"""Of files with the code of one build of Python, which says nothing on another machine."""

FOREIGN = {"type": "command", "command": "/opt/other/bin/observe --all", "timeout": 3}
CLAUDE_CODE = json.dumps(
    {
        "model": "opus",
        "statusLine": {"type": "command", "command": "ccline", "padding": 0},
        "hooks": {"PostToolUse": [{"matcher": "*", "hooks": [FOREIGN]}], "Stop": []},
    },
    indent=4,
)
CODEX = json.dumps({"hooks": {"Stop": [{"hooks": [FOREIGN]}]}})
COMMENTED = '{\n  // by hand\n  "ui": {"theme": "dark"},\n  "hooks": {}\n}\n'

HOMES = {
    "claude-code": ("home/.claude/settings.json", CLAUDE_CODE),
    "codex": ("home/.codex/hooks.json", CODEX),
    "gemini": ("home/.gemini/settings.json", COMMENTED),
    "qwen": ("home/.qwen/settings.json", COMMENTED),
}
"""Of each host the file that holds its hooks, and what stands in it before."""
HTTP = ("--via", "http", "--url", "http://127.0.0.1:8420")
CASES: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    **{
        f"{host}{name}": (host, {path: before}, options)
        for host, (path, before) in HOMES.items()
        for name, options in (("", ()), (" without a resident", ("--no-resident",)))
    },
    **{f"{host} by a shell": (host, {path: before}, ()) for host, (path, before) in HOMES.items()},
    **{f"{host} in a new file": (host, {}, ()) for host in HOMES},
    "claude-code for a project": (
        "claude-code", {"project/.claude/settings.json": CLAUDE_CODE}, ("--project",),
    ),
    "claude-code for a person in a project": (
        "claude-code", {"project/.claude/settings.local.json": CLAUDE_CODE}, ("--local",),
    ),
    "claude-code as a plugin": ("claude-code", {}, ("--plugin", "../plugin")),
    "claude-code over HTTP": ("claude-code", {HOMES["claude-code"][0]: CLAUDE_CODE}, HTTP),
    "claude-code over HTTP, secret in the environment": (
        "claude-code", {HOMES["claude-code"][0]: CLAUDE_CODE},
        (*HTTP, "--secret-in", "environment"),
    ),
}  # fmt: skip
"""By a name: the host, the files that were there, and the options of ``ultramon install``."""


def unpack(commit: str, folder: Path) -> None:
    """Write the package as it was at a commit into a folder."""
    command = ["git", "archive", commit, "ultramon"]
    archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def record(name: str, package: Path, folder: Path) -> dict[str, Any]:
    """Install once; return the case as it is kept.

    Args:
        name: One of `CASES`.
        package: The folder that holds the package.
        folder: An empty one, for the home, the project and the state directory.
    """
    host, before, options = CASES[name]
    for path, text in before.items():
        file = folder / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o644)
    for path in ("home", "project"):
        (folder / path).mkdir(exist_ok=True)
    python = Path(sys.executable)
    if name.endswith("by a shell"):
        # No first line of a program holds a space.
        subprocess.run([python, "-m", "venv", "--without-pip", folder / "a python"], check=True)
        python = folder / "a python" / "bin" / "python"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "ULTRAMON_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": os.pathsep.join((str(package), sysconfig.get_path("purelib"))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [python, "-m", "ultramon", "install", host, "--force", *options]
    subprocess.run(command, cwd=folder / "project", env=environment, check=True)
    names = {str(python): "@PYTHON@", str(package): "@PACKAGE@"}
    files = {}
    for file in sorted(folder.rglob("*")):
        path = str(file.relative_to(folder))
        if not file.is_file() or path.startswith("a python"):
            continue
        mark = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:12]
        names[mark] = f"@MARK {path}@"
        text = "" if path.endswith(CODE_SUFFIX) else file.read_text()
        files[path] = {"mode": f"{file.stat().st_mode & 0o777:o}", "text": text}
    names[str(folder)] = "@ROOT@"
    return {"host": host, "before": before, "options": options, "files": _named(files, names)}


def _named(files: dict[str, dict[str, str]], names: dict[str, str]) -> dict[str, dict[str, str]]:
    text = json.dumps(files)
    for found, name in names.items():
        text = text.replace(found, name)
    result: dict[str, dict[str, str]] = json.loads(text)
    return result


def main() -> None:
    """Record all cases by the code of one commit."""
    (commit,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        unpack(commit, package)
        found = {}
        for number, name in enumerate(CASES):
            own = Path(folder) / str(number)
            own.mkdir()
            found[name] = record(name, package, own)
    path = ROOT / "tests" / "data" / f"installations-{commit}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
