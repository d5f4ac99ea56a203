"""The short program that settings name instead of a shell command: one file in the state directory.

The host shows its user the command of a hook, so that has to be short. A launcher that is gone
ends with 127, which harms nothing; a package that is gone ends it with 0. Never on a hook's path.
"""

from __future__ import annotations

import ast
import errno
import os
import shlex

from ultramon.errors import StateCorruptError
from ultramon.hosts.install.hook_commands import (
    RESIDENT,
    HookScript,
    OurCommand,
    command_line,
    package_directory,
    script_path,
)
from ultramon.hosts.installed_choices import host_of
from ultramon.system.files import NewFile, delete_quietly, read_private_file
from ultramon.system.ids import random_hex

MAX_SHEBANG_BYTES = 127
"""Linux before 5.1 cuts a longer first line, and runs another program or none."""
_OPTIONS = " -IS"
_PATHS = "PACKAGE, CHOICES = "
_IMPORT = "    from ultramon.hosts.{folder}.{module} import main"
"""Of a module that keeps its name: what cannot be imported ends with 0, unseen."""
_TEXT = """\
#!{interpreter}{options}
# Written by `ultramon install {host}`, deleted by `ultramon uninstall {host}`.
import sys
from posix import _exit

{paths}{package}, {choices}
sys.path.append(PACKAGE)
try:
{import_line}
except ImportError:  # the package was removed without uninstall: the host must continue
    _exit(0)
_exit(main([__file__, CHOICES{resident}]))
"""
_CODE_SUFFIX = ".code"


class Launcher:
    """A launcher as it shall be.

    Args:
        script: What it runs; it has a name for its launcher.
        interpreter: Absolute path of the Python that runs it.
        installed: Path of the stored choices; the launcher lies beside them.
        resident: Whether a resident may answer.

    Attributes:
        path: Where it lies.
    """

    def __init__(
        self, script: HookScript, interpreter: str, installed: str, *, resident: bool = False
    ) -> None:
        self.path = os.path.join(os.path.dirname(installed), script.launcher)
        self._interpreter = interpreter
        more = (RESIDENT,) if resident else ()
        self._shell_command = command_line(interpreter, script_path(script), installed, *more)
        self._data = _TEXT.format(
            interpreter=interpreter,
            options=_OPTIONS,
            host=host_of(installed),
            paths=_PATHS,
            package=ascii(package_directory()),
            choices=ascii(installed),
            import_line=_import_line(script),
            resident=f", {RESIDENT!r}" if resident else "",
        ).encode("ascii", "replace")

    @property
    def can_run(self) -> bool:
        """Whether the system can run it: by its first line, and from where it lies."""
        line = f"#!{self._interpreter}{_OPTIONS}"
        return (
            os.name == "posix"
            and line.isascii()
            and line.isprintable()
            and " " not in self._interpreter
            and len(line) <= MAX_SHEBANG_BYTES
            and not _forbids_programs(os.path.dirname(self.path))
        )

    @property
    def command(self) -> str:
        """What settings run: the launcher, or where it cannot be run a shell command."""
        if not self.can_run:
            return self._shell_command
        # Without exec a shell such as dash stays behind and waits: one process more for each call.
        return f"exec {shlex.quote(self.path)}"

    @property
    def changes(self) -> bool:
        """Whether writing it would change anything."""
        try:
            data, found = read_private_file(self.path)
        except (StateCorruptError, OSError):
            return True
        is_same = data == self._data and found.st_mode & 0o777 == 0o700
        return not is_same or os.path.lexists(code_path(self.path))

    def write(self) -> None:
        """Write it, at once for every hook that is about to run.

        Raises:
            StateWriteError: The system refused; what was there before is intact.
        """
        temporary = f"{self.path}.{random_hex(6)}.tmp"
        with NewFile(temporary, self.path, self._data):
            os.chmod(temporary, 0o700)
            os.replace(temporary, self.path)
        delete_quietly(code_path(self.path))


def code_path(launcher: str) -> str:
    """Return where an earlier ultramon kept compiled code for a launcher."""
    return launcher + _CODE_SUFFIX


def read_launcher(path: str, script: HookScript) -> OurCommand:
    """Return what a launcher of a script runs.

    Raises:
        StateCorruptError: It is not as an installation wrote it, or as an older one did.
        OSError: It is not there, or cannot be read or run.
    """
    data, _ = read_private_file(path)
    if not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, "may not be run: its mode, or a mount with noexec")
    try:
        first, *lines = data.decode("ascii").splitlines()
        (paths,) = (line for line in lines if line.startswith(_PATHS))
        package, installed = map(str, ast.literal_eval(paths.removeprefix(_PATHS)))
    except (ValueError, TypeError, SyntaxError) as error:
        raise StateCorruptError(path, "is not as an installation wrote it") from error
    if _import_line(script) not in lines:
        raise StateCorruptError(path, "an older ultramon wrote it, and it does nothing now")
    program = first.removeprefix("#!").removesuffix(_OPTIONS)
    return OurCommand(program, script_path(script, package), installed)


def _import_line(script: HookScript) -> str:
    """Return the line of a launcher that loads what a script runs."""
    return _IMPORT.format(folder=script.folder, module=script.name.removesuffix(".py"))


def _forbids_programs(directory: str) -> bool:
    """Return whether programs in a directory, existing or not, cannot be run (``noexec``)."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return bool(os.statvfs(directory).f_flag & getattr(os, "ST_NOEXEC", 0))
