"""The short program that settings name instead of a shell command: one file in the state directory.

The client shows its user the command of a hook, so that has to be short. A launcher that is gone
ends with 127, which harms nothing; a package that is gone ends it with 0. Never on a hook's path.
"""

from __future__ import annotations

import ast
import errno
import os
import shlex
from contextlib import suppress

from ultramon.errors import StateCorruptError, StateError
from ultramon.hosts.code_bundle import (
    HEAD_BYTES,
    bundle_path,
    make_bundle,
    problem_of_bundle,
)
from ultramon.hosts.hook_commands import (
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
_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
)
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
{bundle}try:
{import_line}
except ImportError:  # the package was removed without uninstall: the client must go on
    _exit(0)
{call}
"""
_BUNDLE = """\
STALE = False
try:
    from marshal import loads
    from posix import fstat, geteuid, open, read
    FD = open({bundle}, {flags})
    STALE = True
    HEAD, FOUND, KEY = read(FD, {head_bytes}), fstat(FD), sys.version.encode()
    if FOUND.st_uid == geteuid() and not FOUND.st_mode & 0o22 and HEAD.startswith(KEY):
        LOADER, ROOT, INDEX = loads(HEAD[len(KEY):])
        exec(LOADER)
        STALE = ROOT != PACKAGE or not load(FD, ROOT, INDEX)
except Exception:  # whatever it is, what is imported below is right
    pass
"""
_CALL = "_exit(main([__file__, CHOICES{resident}]))"
_CALL_AND_RENEW = """\
main([__file__, CHOICES])
if STALE:
    try:
        from ultramon.hosts.code_bundle import renew
        renew({launcher})
    except Exception:  # another version of the package: the client must go on
        pass
_exit(0)"""


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
        # What a resident answers loads hardly anything.
        self._has_bundle = not resident
        bundle, call = "", _CALL.format(resident=f", {RESIDENT!r}")
        if self._has_bundle:
            bundle = _BUNDLE.format(
                bundle=ascii(bundle_path(self.path)), flags=_FLAGS, head_bytes=HEAD_BYTES
            )
            call = _CALL_AND_RENEW.format(launcher=ascii(self.path))
        self._data = _TEXT.format(
            interpreter=interpreter,
            options=_OPTIONS,
            host=host_of(installed),
            paths=_PATHS,
            package=ascii(package_directory()),
            choices=ascii(installed),
            bundle=bundle,
            import_line=_import_line(script),
            call=call,
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
        if data != self._data or found.st_mode & 0o777 != 0o700:
            return True
        return self._has_bundle and problem_of_bundle(self.path) is not None

    def write(self) -> None:
        """Write it, at once for every hook that is about to run.

        Raises:
            StateWriteError: The system refused; what was there before is intact.
        """
        temporary = f"{self.path}.{random_hex(6)}.tmp"
        with NewFile(temporary, self.path, self._data):
            os.chmod(temporary, 0o700)
            os.replace(temporary, self.path)
        if not self._has_bundle:
            delete_quietly(bundle_path(self.path))
            return
        # Without one the hooks only take longer, and the doctor says so.
        with suppress(StateError, OSError):
            make_bundle(self.path)


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
