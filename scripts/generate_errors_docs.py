"""Write the tables of docs/errors.md, between the marks, from the docstrings of the classes.

Run it after a change of an error or an exit code: python scripts/generate_errors_docs.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from ultramon import errors, handoff
from ultramon.cli import exit_codes
from ultramon.errors import UltramonError
from ultramon.fleet.supervise import result

DOCS = Path(__file__).parent.parent / "docs" / "errors.md"
_MARKED = re.compile(r"(<!-- (errors|exit codes) -->\n).*?(<!-- end -->)", re.DOTALL)
_FIELD = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_NAMED = re.compile(r"\{\w+\}")
_COMMON = {"UltramonError", "Exception", "BaseException", "object"}


def error_classes() -> list[type[UltramonError]]:
    """Return the exceptions that a program may catch, in the order of their code."""
    return [
        kind
        for place in (errors, handoff, result)
        for kind in vars(place).values()
        if inspect.isclass(kind)
        and issubclass(kind, UltramonError)
        and kind.__module__ == place.__name__
        and kind is not UltramonError
    ]


def parts_of(kind: type[UltramonError]) -> dict[str, str]:
    """Return what a docstring says by its marks: ``meaning``, ``Raised``, ``Cure``, each a text.

    Raises:
        SystemExit: One of them is missing.
    """
    parts = {"meaning": ""}
    for paragraph in inspect.getdoc(kind).split("\n\n"):  # type: ignore[union-attr]
        text = " ".join(paragraph.split()).replace("``", "`")
        name, colon, rest = text.partition(": ")
        if colon and name in ("Raised", "Cure"):
            parts[name] = rest
        elif not parts["meaning"]:
            parts["meaning"] = text
    for name in ("Raised", "Cure"):
        if name not in parts:
            raise SystemExit(f"{kind.__name__} has no paragraph that begins with {name}:")
    return parts


def _fields_of(kind: type[UltramonError]) -> list[str]:
    for one in kind.__mro__:
        _, mark, listed = (inspect.cleandoc(one.__doc__ or "")).partition("Attributes:\n")
        if mark and issubclass(one, UltramonError):
            return [f"`{name}`" for name in _FIELD.findall(listed)]
    return []


def _errors() -> Iterator[str]:
    for kind in error_classes():
        bases = ", ".join(
            f"`{base.__name__}`" for base in kind.__mro__[1:] if base.__name__ not in _COMMON
        )
        parts = parts_of(kind)
        yield f"### {kind.__name__}"
        yield ""
        yield parts["meaning"]
        yield ""
        yield f"- **Raised**: {parts['Raised']}"
        yield f"- **Cure**: {parts['Cure']}"
        also = f" **Also**: {bases}." if bases else ""
        yield f"- **Fields**: {', '.join(_fields_of(kind))}.{also}"
        for problem, text in getattr(kind, "_TEXTS", {}).items():
            yield f"- `{problem}`: {_NAMED.sub('…', text)}."
        yield ""


def exit_code_meanings() -> dict[str, str]:
    """Return what stands below each exit code in its file, by name."""
    tree = ast.parse(inspect.getsource(exit_codes.ExitCode)).body[0]
    assert isinstance(tree, ast.ClassDef)
    meanings: dict[str, str] = {}
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr):
            name = ast.unparse(node.targets[0])
            meanings[name] = " ".join(str(ast.literal_eval(after.value)).split())
    return meanings


def _exit_codes() -> Iterator[str]:
    meanings = exit_code_meanings()
    yield "| code | name | meaning |"
    yield "|---|---|---|"
    for code in exit_codes.ExitCode:
        yield f"| {int(code)} | `{code.name}` | {meanings[code.name]} |"


def render(document: str) -> str:
    """Return the document with fresh lists."""
    makers = {"errors": _errors, "exit codes": _exit_codes}
    return _MARKED.sub(
        lambda match: "\n".join([match[1].rstrip(), *makers[match[2]](), match[3]]), document
    )


if __name__ == "__main__":
    DOCS.write_text(render(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
