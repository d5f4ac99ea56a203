"""How this copy of ultramon was installed, and the command that installs what an extra brings.

Imported where it is about to be said. Errors import it, so it imports no other module of ultramon.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

IS_ON_INDEX = False
"""Whether the package index has ultramon: true from its first release on."""
_NAME = "ultramon"
_PIPX_FILE, _UV_TOOL_FILE = "pipx_metadata.json", "uv-receipt.toml"
TOOL_FILES = (_PIPX_FILE, _UV_TOOL_FILE)
"""What pipx and `uv tool` leave in an environment that they make for one program."""


def install_command(extra: str, prefix: str | None = None) -> str:
    """Return the command that adds an extra to this installation, for a shell.

    It names what works here: the directory or repository that ultramon was installed from, else the
    packages of the extra themselves, and the program that made the environment (pip, pipx or uv).

    Args:
        extra: Of ultramon, such as ``tui``.
        prefix: Of the environment; default `sys.prefix`.
    """
    prefix = sys.prefix if prefix is None else prefix
    packages = shlex.join(packages_of(extra)) or shlex.quote(f"{_NAME}[{extra}]")
    if os.path.exists(os.path.join(prefix, _PIPX_FILE)):
        return f"pipx inject {os.path.basename(prefix)} {packages}"
    source, is_editable = _source()
    if os.path.exists(os.path.join(prefix, _UV_TOOL_FILE)):
        more = " ".join(f"--with {shlex.quote(one)}" for one in packages_of(extra))
        own = "-e " if is_editable else ""
        return f"uv tool install {more} {own}{shlex.quote(source or _NAME)}"
    what = packages
    if source is not None:
        own = "-e " if is_editable else ""
        what = own + _quoted(_with_extra("." if source == os.getcwd() else source, extra))
    elif IS_ON_INDEX:
        what = _quoted(f"{_NAME}[{extra}]")
    return f"{_installer(prefix)} {what}"


def tool_install_commands() -> tuple[str, str]:
    """Return the commands of pipx and of uv that install this ultramon for its user.

    They name the directory or repository that it was installed from, while that is there; before
    the first release else the present directory, as people call them in a clone.
    """
    source, _ = _source()
    what = shlex.quote(source or (_NAME if IS_ON_INDEX else "."))
    return f"pipx install {what}", f"uv tool install {what}"


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, as they are stated; empty where nothing states them."""
    try:
        stated = distribution(_NAME).requires or []
    except PackageNotFoundError:  # not installed, but on the path
        return []
    found = (one.replace('"', "'").partition(";") for one in stated)
    return [name.strip() for name, _, marker in found if f"extra == '{extra}'" in marker]


def _source() -> tuple[str | None, bool]:
    """Return where this was installed from, while that is there, and whether it is editable."""
    try:
        stated = json.loads(distribution(_NAME).read_text("direct_url.json") or "null")
        url = stated["url"]
        revision = stated.get("vcs_info")
        is_editable = bool(stated.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None, False
    if revision is not None:
        return f"{revision.get('vcs', 'git')}+{url}", False
    parts = urlsplit(url)
    path = unquote(parts.path)
    return (path, is_editable) if parts.scheme == "file" and os.path.exists(path) else (None, False)


def _with_extra(source: str, extra: str) -> str:
    is_repository = "+" in source.partition(":")[0]
    return f"{_NAME}[{extra}] @ {source}" if is_repository else f"{source}[{extra}]"


def _quoted(word: str) -> str:
    # As people write it, also where the shell would take it as it is.
    return f"'{word}'" if "'" not in word else shlex.quote(word)


def _installer(prefix: str) -> str:
    """Return the program that installs into an environment, so that it does so into this one."""
    executable = os.path.join(prefix, "Scripts" if os.name == "nt" else "bin", "python")
    if prefix == sys.prefix:
        executable = sys.executable
    if _is_of_uv(prefix):
        return f"uv pip install --python {shlex.quote(executable)}"
    if os.path.realpath(os.environ.get("VIRTUAL_ENV") or prefix) == os.path.realpath(prefix):
        folders = os.environ.get("PATH", "").split(os.pathsep)
        if os.path.dirname(executable) in folders:
            return "pip install"
    return f"{shlex.quote(executable)} -m pip install"


def _is_of_uv(prefix: str) -> bool:
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            return any(line.partition("=")[0].strip() == "uv" for line in file)
    except (OSError, ValueError):
        return False
