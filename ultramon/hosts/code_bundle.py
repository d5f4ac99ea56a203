"""One file with the code of all modules that a hook loads: to find each of them takes longer.

An installation makes it beside the launcher, and a call that finds it stale makes it anew. It is
never needed: where it is not exactly what the sources say, the launcher imports them. Docstrings
and the annotations of functions, which nothing on a hook's path looks at, are left out.
"""

from __future__ import annotations
import __future__

import ast
import errno
import marshal
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from types import CodeType

from ultramon.errors import StateCorruptError, StateError
from ultramon.hosts.hook_commands import package_directory
from ultramon.system.files import delete_quietly, read_private_file, replace_file

Source = tuple[str, str, int, int, int]
"""A module's name, its path below the root; inode, mtime (ns) and size (bytes) of that file."""
Entry = tuple[str, str, int, int, int, int, int]
"""The same, then where its code begins in the bundle, and how many bytes that has."""

HEAD_BYTES = 1 << 14
"""The loader and the index fit into it."""
SUFFIX = ".code"
RENEW_SECONDS = 60.0
"""A younger bundle that is stale is not made anew: the sources change faster than calls come."""
MAX_BYTES = 1 << 23
_LOADER = "ultramon.hosts.bundle_loader"
_COMMON = (
    "ultramon.hosts.hook_program",
    "ultramon.hosts.port",
    "ultramon.hosts.handling",
    "ultramon.hosts.store",
    "ultramon.system.locks",
)


def _roots(folder: str, *names: str) -> tuple[str, ...]:
    """Return the modules of a host by their names, with those that every hook loads."""
    first, *own = (f"ultramon.hosts.{folder}.{name}" for name in names)
    return first, *_COMMON[:2], *own, *_COMMON[2:]


_CLAUDE_CODE = "host", "transcripts.last_reading"
ROOTS = {
    "claude-code.ultramon-hook": _roots("claude_code", "hook", *_CLAUDE_CODE),
    "claude-code.ultramon-statusline": _roots(
        "claude_code", "statusline", *_CLAUDE_CODE, "status_line"
    ),
    "codex.ultramon-hook": _roots("codex", "hook", "host"),
    "gemini.ultramon-hook": _roots("gemini", "hook", "host", "subagent_files"),
    "qwen.ultramon-hook": _roots("qwen", "hook", "host"),
}
"""What a common call imports, by the launcher's file name; bundled with all that these import at
module level."""


def bundle_path(launcher: str) -> str:
    """Return where the bundle of a launcher lies."""
    return launcher + SUFFIX


def bundle_key() -> bytes:
    """Return what a bundle begins with: the build of Python that made it, and alone can run it."""
    return sys.version.encode()


def make_bundle(launcher: str) -> None:
    """Make the bundle of a launcher, at once for every hook that is about to run.

    Raises:
        StateError: The system refused; what was there before is intact.
        OSError: A source cannot be read.
    """
    replace_file(bundle_path(launcher), _encode(ROOTS[os.path.basename(launcher)]))


def renew(launcher: str) -> None:
    """Make a stale bundle anew, or delete it where that is refused: no call shall try in vain."""
    path = bundle_path(launcher)
    try:
        if 0 <= time.time() - os.lstat(path).st_mtime < RENEW_SECONDS:
            return
        make_bundle(launcher)
    except (StateError, OSError, SyntaxError):
        delete_quietly(path)


def problem_of_bundle(launcher: str) -> str | None:
    """Return why a launcher does without its bundle, None where it does not.

    One that is stale, or of another Python, is made anew by the next call.
    """
    try:
        _, found = read_private_file(bundle_path(launcher), MAX_BYTES)
    except FileNotFoundError:
        return "is missing"
    except StateCorruptError as error:
        return error.reason
    except OSError as error:
        return str(error.strerror)
    return "others may write to it" if found.st_mode & 0o022 else None


def _encode(roots: tuple[str, ...]) -> bytes:
    root = package_directory()
    key = bundle_key()
    index: list[Entry] = []
    codes: list[bytes] = []
    at = HEAD_BYTES
    for source in _in_order(roots, root):
        _, code = _read_module(source, root)
        codes.append(marshal.dumps(code))
        index.append((*source, at, len(codes[-1])))
        at += len(codes[-1])
    _, loader = _read_module(_source_of(_LOADER, root), root)
    head = key + marshal.dumps((loader, root, index))
    if len(head) > HEAD_BYTES:
        raise OSError(errno.E2BIG, f"the index has {len(head)} bytes, at most {HEAD_BYTES} fit")
    return b"".join((head, bytes(HEAD_BYTES - len(head)), *codes))


def _in_order(roots: tuple[str, ...], root: str) -> list[Source]:
    """Return modules with all that they import at module level, each after what it imports."""
    found: dict[str, Source | None] = {}

    def add(name: str) -> None:
        if name in found:
            return
        parent = name.rpartition(".")[0]
        if parent:
            add(parent)
        found[name] = None
        source = _source_of(name, root)
        for imported in _read_module(source, root)[0]:
            add(imported)
        del found[name]  # what it imports comes first
        found[name] = source

    for name in roots:
        add(name)
    return [source for source in found.values() if source is not None]


def _source_of(name: str, root: str) -> Source:
    path = _path_of(name, root)
    found = os.stat(path)
    return name, path.removeprefix(root), found.st_ino, found.st_mtime_ns, found.st_size


def _path_of(name: str, root: str) -> str:
    path = os.path.join(root, *name.split("."))
    package = os.path.join(path, "__init__.py")
    return package if os.path.isfile(package) else f"{path}.py"


@cache
def _read_module(source: Source, root: str) -> tuple[list[str], CodeType]:
    """Return what a module imports of ultramon when it is run, and its code.

    Remembered for a process that makes several bundles: most of each is the same.
    """
    path = root + source[1]
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    imports = list(_imports(tree.body, root))
    _leave_out(tree)
    # The import that says so would be one more module to find.
    is_future = any(_is_future(node) for node in tree.body)
    tree.body = [node for node in tree.body if not _is_future(node)]
    flags = __future__.annotations.compiler_flag if is_future else 0
    return imports, compile(tree, path, "exec", flags, dont_inherit=True)


def _imports(body: list[ast.stmt], root: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _imports(node.body, root)
            yield from _imports(node.orelse, root)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ultramon"):
            module = str(node.module)
            yield module
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                if os.path.isfile(_path_of(inner, root)):
                    yield inner


def _is_future(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and [alias.name for alias in node.names] == ["annotations"]
    )


def _leave_out(tree: ast.Module) -> None:
    """Take out docstrings and the annotations of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif not isinstance(node, ast.ClassDef | ast.Module):
            continue
        body = getattr(node, "body", None)
        if body:
            left = [one for one in body if not _is_text(one)]
            node.body = left or [ast.copy_location(ast.Pass(), body[0])]  # type: ignore[union-attr]


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
