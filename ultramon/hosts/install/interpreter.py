"""Which Python an installed hook names, and whether that one will last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from ultramon.errors import ConfigurationError
from ultramon.hosts.doctor_context import ok, problem, warning
from ultramon.hosts.install.hook_commands import OurCommand, package_directory
from ultramon.installed import TOOL_FILES, tool_install_commands
from ultramon.system.findings import Finding

_PROJECT_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "package.json", ".claude")
# An environment that pipx or `uv tool` made belongs to no project, and lasts.
_CACHES = frozenset((".cache", "Caches"))
_START_SECONDS = 30
_MODULES = "ultramon.hosts.hook_program, ultramon.hosts.claude_code.status_line"


def this_interpreter() -> str:
    """Return the absolute path of the running Python under the name that lasts longest.

    A venv's own link, never what it leads to (there the package is not installed, and a patch
    release moves it); of several names for the same file the least versioned one.

    Raises:
        ConfigurationError: The interpreter does not know its own path.
    """
    if not sys.executable:
        raise ConfigurationError("interpreter", sys.executable, "a path", "sys.executable")
    path = os.path.abspath(sys.executable)
    names = ("python", "python3") if sys.prefix != sys.base_prefix else ("python3",)
    for name in names:
        candidate = os.path.join(os.path.dirname(path), name)
        if os.path.exists(candidate) and os.path.samefile(candidate, path):
            return candidate
    return path


def lasting_interpreter(cwd: str, *, force: bool) -> str:
    """Return the Python that hooks shall run: this one, which starts and will last.

    Args:
        cwd: The working directory.
        force: Whether one that may not last will do.

    Raises:
        ConfigurationError: This program may not last, or its Python does not run the hook.
    """
    if not force:
        check_lasting(cwd)
    interpreter = this_interpreter()
    check_interpreter(interpreter)
    return interpreter


def check_lasting(cwd: str, *, prefix: str = sys.prefix, base: str = sys.base_prefix) -> None:
    """Make sure that the environment of this program is not one that comes and goes.

    Args:
        cwd: The working directory.
        prefix: Root of the environment.
        base: Root of the Python it was made from; the same where there is no venv.

    Raises:
        ConfigurationError: It is a project's own venv, or lies in a cache.
    """
    if prefix == base:
        return
    parts = prefix.split(os.sep)
    if not _CACHES.isdisjoint(parts):
        raise ConfigurationError("interpreter", prefix, _advice(), "an environment in a cache")
    if any(os.path.exists(os.path.join(prefix, mark)) for mark in TOOL_FILES):
        return
    home = os.path.expanduser("~")
    folder = os.path.dirname(prefix)
    # The home directory holds .claude and often .git, and is no project for that.
    while folder not in (home, os.path.dirname(folder)) and not home.startswith(folder + os.sep):
        if folder == cwd or any(os.path.exists(os.path.join(folder, m)) for m in _PROJECT_MARKS):
            raise ConfigurationError("interpreter", prefix, _advice(), f"the venv of {folder}")
        folder = os.path.dirname(folder)


def _advice() -> str:
    pipx, uv = tool_install_commands()
    return (
        f"one that outlives the project: install the tool for yourself with `{pipx}` or `{uv}` "
        "and run that one, or insist with --force"
    )


def check_interpreter(interpreter: str) -> None:
    """Make sure that a Python starts and can import the hook, before anything is written.

    Raises:
        ConfigurationError: It cannot.
    """
    problem = problem_of(interpreter)
    if problem is not None:
        raise ConfigurationError(
            "interpreter", interpreter, f"a Python that runs the hook; this one {problem}"
        )


def problem_of(interpreter: str, package: str | None = None) -> str | None:
    """Say why a Python cannot run what the installed commands run.

    Args:
        interpreter: Its path.
        package: The directory that holds `ultramon`; None = that of this program.

    Returns:
        None when it can.
    """
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {_MODULES}"
    # As the hook runs: no `.pth` file, user site or environment may make the answer another one.
    arguments = [interpreter, "-I", "-S", "-c", code, package or package_directory()]
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not start within {_START_SECONDS} s"
    except OSError as error:
        return f"does not start: {error.strerror}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        return f"cannot run the hook: {lines[-1] if lines else f'exit {done.returncode}'}"
    return None


def check_command(command: OurCommand, install: str) -> Finding:
    """Answer the doctor whether what settings run is there, starts, and is this ultramon.

    Args:
        command: What they run.
        install: The command that installs it anew.
    """
    name, program, script = "interpreter", shutil.which(command.program), command.script
    if script is not None and not os.access(script, os.R_OK):
        return problem("hook script", f"{script} is gone: the hooks do nothing", install)
    if program is None:
        return problem(name, f"{command.program} is gone: no hook can run", install)
    if script is None:
        return ok(name, program)
    package = os.path.abspath(os.path.join(os.path.dirname(script), *[os.pardir] * 3))
    reason = problem_of(program, package)
    if reason is not None:
        return problem(name, f"{command.program} {reason}", install)
    if os.path.realpath(package) != os.path.realpath(package_directory()):
        message = f"the hooks run the ultramon in {package}, this is {package_directory()}"
        return warning(name, message, install)
    return ok(name, f"{command.program} runs {script}")
