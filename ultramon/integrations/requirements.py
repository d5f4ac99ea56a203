"""Which version of a framework an adapter needs, and the error where it is missing or too old."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

from ultramon.errors import MissingExtraError


def missing_extra(error: ImportError, module: str, extra: str) -> ImportError:
    """Return the error for a framework that is not installed or too old; any other one as it is.

    Args:
        error: What the import of the framework raised.
        module: The framework's top-level module.
        extra: The extra of ultramon, named as the framework's package.
    """
    if (error.name or "").partition(".")[0] != module:
        return error
    try:
        refuse_older(extra)
    except MissingExtraError as too_old:
        return too_old
    if not isinstance(error, ModuleNotFoundError):
        return error
    return MissingExtraError(_feature(extra), extra, extra)


def refuse_older(extra: str) -> None:
    """Refuse a framework whose version is below that of its extra, as other packages may hold it.

    Raises:
        MissingExtraError: It is too old; names both versions.
    """
    bound = next((one for one in _requirements() if one.endswith(f"extra == '{extra}'")), "")
    package, _, needed = bound.partition(";")[0].strip().partition(">=")
    if not needed:
        return
    try:
        installed = version(package)
    except PackageNotFoundError:
        return
    if _release(installed) < _release(needed):
        raise MissingExtraError(_feature(extra), extra, extra, needed=needed, installed=installed)


@cache
def _requirements() -> list[str]:
    try:
        return [one.replace('"', "'") for one in requires("ultramon") or ()]
    except PackageNotFoundError:  # not installed, but on the path
        return []


def _release(of_version: str) -> list[int]:
    """Return the numbers of a release, without zeros at its end and what marks a stage of it."""
    found = re.match(r"\d+(?:\.\d+)*", of_version)
    numbers = [int(number) for number in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _feature(extra: str) -> str:
    return f"ultramon.integrations.{extra.replace('-', '_')}"
