"""One chain for every setting: keyword, environment variable, ``ultramon.toml``, default.

A class of settings declares each of them once, with `setting`. Checks, answers to a misspelt name,
what an untrusted project may set and docs/settings.md follow from the declarations. Standard
library only and cheap to import: alerts read their settings after every command of a tool.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError
from ultramon.system.settings_files import TOML_NAME, settings_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, ClassVar, Self, dataclass_transform

    from ultramon.system.settings_files import SettingsFile
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        """Return a decorator that does nothing: importing `typing` costs 5 ms."""
        return lambda decorated: decorated


TABLES = {
    "context": "ULTRAMON_",
    "alerts": "ULTRAMON_ALERT_",
    "webhooks": "",
    "levels": "ULTRAMON_LEVELS_",
    "plan": "ULTRAMON_PLAN_",
    "budgets": "",
    "on": "",
}
"""The tables of that file, with the prefix of their environment variables. A name that is nearly
one of them is refused; other programs may keep any other table there."""
ARGUMENT = "argument"
REQUIRED = ...
"""In place of a default."""
MOST_TOKENS = 1_000_000_000
MOST_SECONDS = 31_536_000

_LEAST_LIKENESS = 0.78
"""The likeness, as `difflib` measures it, from which a name is taken for a misspelt one; any two
variables of ultramon are less alike."""
_seen_variables: set[str] = set()
_seen_refusals: set[str] = set()
_MAX_NAME_CHARS = 40


class Kind:
    """The values that a setting takes.

    Args:
        allowed: The values in words, as errors and docs/settings.md give them.
        test: Whether a value is one of them.
        parse: Makes a value of the text of an environment variable.
        unit: Of a number; empty = none.
        keep: Makes the value to keep of an allowed one.
    """

    __slots__ = ("allowed", "keep", "parse", "test", "unit")

    def __init__(
        self,
        allowed: str,
        test: Callable[[Any], bool],
        parse: Callable[[str], Any] = str,
        unit: str = "",
        keep: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.allowed = allowed
        self.test = test
        self.parse = parse
        self.unit = unit
        self.keep = keep

    def check(self, name: str, value: Any, source: str = ARGUMENT) -> Any:
        """Return the value to keep.

        Raises:
            ConfigurationError: The value is not allowed; names the setting and the source.
        """
        if not self.test(value):
            raise ConfigurationError(name, value, self.allowed, source)
        return self.keep(value)


class OrNone(Kind):
    """The values of another kind, or None, in a variable ``none``."""

    __slots__ = ("_kind",)

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"None or {kind.allowed}", kind.test, unit=kind.unit)
        self.parse = lambda text: None if text.lower() in ("none", "null") else kind.parse(text)
        self._kind = kind

    def check(self, name: str, value: Any, source: str = ARGUMENT) -> Any:
        """Return None, or the value to keep."""
        return None if value is None else self._kind.check(name, value, source)


def whole_number(least: int, most: int, unit: str = "") -> Kind:
    """Return a kind of whole numbers between two bounds, both inclusive."""
    allowed = f"a whole number from {least:,} to {most:,}"
    return Kind(
        allowed, lambda value: _is(value, int) and least <= value <= most, parse_number, unit
    )


def number(allowed: str, test: Callable[[float], bool], unit: str) -> Kind:
    """Return a kind of numbers, kept as floats."""
    return Kind(
        allowed, lambda value: _is(value, int, float) and test(value), parse_number, unit, float
    )


def choice(*choices: str) -> Kind:
    """Return a kind of a few texts."""
    return Kind(f"one of {', '.join(choices)}", lambda value: value in choices)


def parse_number(text: str) -> int | float | str:
    """Return the number that a text is, else the text, for the check to refuse."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _is(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


TEXT = Kind("text", lambda value: isinstance(value, str))
TOKENS = whole_number(1, MOST_TOKENS, "tokens")
RATIO = number("a finite ratio, 0 < ratio <= 1", lambda value: 0 < value <= 1, "usage ratio")
MARGIN = number("0 <= margin < 1", lambda value: 0 <= value < 1, "usage ratio")


class Tightening:
    """The values of a setting that an untrusted project may give: those that warn no later.

    Args:
        allowed: The values in words, for docs/settings.md.
        test: Whether a value is one of them; called with it, the name of the setting, and the
            settings as they are without the project.
    """

    __slots__ = ("allowed", "test")

    def __init__(self, allowed: str, test: Callable[[Any, str, Any], bool]) -> None:
        self.allowed = allowed
        self.test = test


def _is_lower(value: Any, name: str, own: Any) -> bool:
    mine = getattr(own, name)
    return bool(mine is None or value <= mine)


def _is_higher(value: Any, name: str, own: Any) -> bool:
    mine = getattr(own, name)
    return bool(mine is None or value >= mine)


LOWER = Tightening("a lower one", _is_lower)
HIGHER = Tightening("a higher one", _is_higher)


class Setting:
    """One setting of a table.

    Args:
        kind: The values it takes.
        default: Its value where nothing is configured.
        meaning: What it decides, in one or two sentences of Markdown.
        variable: Its environment variable; None = the prefix of its table and the name in upper
            case, empty = none.
        keys: Of a table in which each key has a variable of its own (``<variable>_<KEY>``), and
            each source fills only the keys that it names.
        from_project: What is taken of it from a project that is not trusted; None = nothing.
    """

    __slots__ = ("default", "from_project", "keys", "kind", "meaning", "name", "variable")

    def __init__(
        self,
        kind: Kind,
        default: Any,
        meaning: str,
        *,
        variable: str | None = None,
        keys: tuple[str, ...] = (),
        from_project: Tightening | None = None,
    ) -> None:
        self.kind = kind
        self.default = default
        self.meaning = meaning
        self.variable = variable
        self.keys = keys
        self.from_project = from_project
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.kind.allowed}; default {self.default!r}: {self.meaning}>"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it."""
        if self.keys:
            return tuple(f"{self.variable}_{key.upper()}" for key in self.keys)
        return (self.variable,) if self.variable else ()

    def resolve(
        self, given: Mapping[str, Any], tables: Sequence[tuple[Mapping[str, Any], str]]
    ) -> tuple[Any, str | None]:
        """Return the checked value and its source; None as the source of a default.

        Args:
            given: The keywords.
            tables: Those of the files with their sources, the weaker before the stronger.

        Raises:
            ConfigurationError: The value is not allowed.
        """
        layers = [(table[self.name], source) for table, source in tables if self.name in table]
        for key, variable in zip(self.keys or (None,), self.variables, strict=False):
            if text := os.environ.get(variable):
                value = self.kind.parse(text) if key is None else {key: text}
                layers.append((value, variable))
        if self.name in given:
            layers.append((given[self.name], ARGUMENT))
        value, source = self.default, None
        if isinstance(value, dict):
            value = dict(value)
        # The strongest layer decides; of a table of keys each one fills what it names.
        for layer, source in layers if self.keys else layers[-1:]:
            checked = self.kind.check(self.name, layer, source)
            value = {**value, **checked} if self.keys else checked
        return value, source


setting: Any = Setting
"""Declares a setting of a class, where type checkers see a value of the annotated type."""


class _Signature:
    """The keywords of a class of settings with their defaults, as `help` shows them."""

    def __get__(self, instance: object, owner: type[Settings]) -> Any:
        from inspect import Parameter, Signature

        return Signature(
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=one.default)
                for name, one in owner.settings.items()
            ]
        )


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """Base of the settings of one table: an immutable value, complete and checked once made.

    A subclass names its table, and variables with the table's prefix that set something else.

    Attributes:
        sources: Where each configured value came from, by name; a default has no entry.
        refusal: What of a project's file is not taken, why, and the cure; empty for nothing.
    """

    settings: ClassVar[dict[str, Setting]]
    sources: dict[str, str]
    refusal: str

    __signature__ = _Signature()
    _table: ClassVar[str]
    _variables: ClassVar[set[str]]
    _none_is_default: ClassVar[bool]

    def __init_subclass__(
        cls, *, table: str, other_variables: Iterable[str] = (), none_is_default: bool = False
    ) -> None:
        cls._table, cls._none_is_default = table, none_is_default
        cls._variables = {TABLES[table] + name for name in other_variables}
        cls.settings = {
            name: value for name, value in vars(cls).items() if isinstance(value, Setting)
        }
        for name, one in cls.settings.items():
            if one.variable is None:
                one.variable = TABLES[table] + name.upper()
            cls._variables.update(one.variables)

    def __init__(self, **given: Any) -> None:
        check_settings(given, self.settings, ARGUMENT)
        if self._none_is_default:
            given = {name: value for name, value in given.items() if value is not None}
        files = settings_files()
        tables = []
        for file in files:
            if file.is_trusted:
                table = table_of(file, self._table)
                check_settings(table, self.settings, file.path, f"[{self._table}]")
                tables.append((table, self._source(file)))
        self._warn_of_misspelt_variables()
        values = vars(self)
        sources = values["sources"] = {}
        values["refusal"] = ""
        shared = self._shared_values()
        for name, one in self.settings.items():
            values[name], source = one.resolve(given, tables)
            if source is None and name in shared:
                values[name], source = shared[name]
            if source is not None:
                sources[name] = source
        self._check_together()
        if files and not files[-1].is_trusted:
            self._tighten(files[-1])

    @classmethod
    def _source(cls, file: SettingsFile) -> str:
        return f"{file.path} [{cls._table}]"

    def _shared_values(self) -> dict[str, tuple[Any, str]]:
        """Return values that hold instead of defaults, with their sources, by name."""
        return {}

    def _check_together(self) -> None:
        """Refuse values that contradict each other."""

    def _tighten(self, project: SettingsFile) -> None:
        """Take what an untrusted project may set, and name the rest."""
        table = project.tables.get(self._table, {})
        own = self._copy()
        taken, refused = {}, []
        for name, value in table.items() if isinstance(table, dict) else [("", table)]:
            if name not in self.settings or self.settings[name].from_project is None:
                refused.append(name)
            elif self.sources.get(name) in (ARGUMENT, *self.settings[name].variables):
                continue  # these outrank every file
            elif (kept := self._tightened(name, value, own)) is None:
                refused.append(name)
            else:
                taken[name] = kept
        if taken:
            vars(self).update(taken, _without_project=own)
            self.sources.update(dict.fromkeys(taken, self._source(project)))
            try:
                self._check_together()
                self._check_tightened()
            except ConfigurationError:
                # All or nothing: a part of them could warn later than the user's own.
                refused += taken
                vars(self).clear()
                vars(self).update(vars(own))
        if refused or project.problem:
            vars(self)["refusal"] = _refusal(project, self._table, refused)
            self._name_refusal()

    def _tightened(self, name: str, value: Any, own: Self) -> Any:
        """Return the value to keep; None for one that a project may not give."""
        one = self.settings[name]
        try:
            kept = one.kind.check(name, value, TOML_NAME)
            is_taken = one.from_project is not None and one.from_project.test(kept, name, own)
        except ConfigurationError:
            return None
        return kept if is_taken else None

    def _check_tightened(self) -> None:
        """Refuse values of a project that together would warn later than without it."""

    def _name_refusal(self) -> None:
        log_refusal(self.refusal)

    @property
    def without_project(self) -> Self:
        """These settings without what an untrusted project tightened; often the same object."""
        own: Self = vars(self).get("_without_project", self)
        return own

    def _copy(self) -> Self:
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), sources=dict(self.sources))
        return copy

    def _contradiction(self, name: str, allowed: str) -> ConfigurationError:
        source = self.sources.get(name, "default")
        return ConfigurationError(name, getattr(self, name), allowed, source)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, checked like any configuration.

        Raises:
            ConfigurationError: A value is out of range, or there is no such setting.
        """
        copy = type(self)(**{**self._values(), **changes})
        vars(copy)["sources"] = {**self.sources, **dict.fromkeys(changes, ARGUMENT)}
        if (own := self.without_project) is not self:
            vars(copy)["_without_project"] = own.replace(**changes)
        return copy

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.settings}

    def __setattr__(self, name: str, value: object) -> None:
        allowed = "left as it is: a configuration is frozen; make another one with replace()"
        raise ConfigurationError(name, value, allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__name__}({values})"

    @classmethod
    def _warn_of_misspelt_variables(cls) -> None:
        """Log each variable that nearly names a setting, once per process.

        It may belong to another program, so that nothing is refused.
        """
        prefix = TABLES[cls._table]
        # A longer prefix is that of another table.
        others = tuple(other for other in TABLES.values() if len(other) > len(prefix))
        for variable in {*os.environ}.difference(cls._variables, _seen_variables):
            if not variable.startswith(prefix) or variable.startswith(others):
                continue
            _seen_variables.add(variable)
            meant = {known.removeprefix(prefix): known for known in cls._variables}
            for name, one in cls.settings.items():
                elsewhere = f"{name} as a keyword or in {TOML_NAME} [{cls._table}]"
                meant.setdefault(name.upper(), " or ".join(one.variables) or elsewhere)
            if hint := did_you_mean(variable.removeprefix(prefix), meant, meant):
                from logging import getLogger

                getLogger("ultramon").warning("%s is no variable of ultramon%s", variable, hint)


def check_settings(
    names: Iterable[str], known: Collection[str], source: str, table: str = ""
) -> None:
    """Refuse an unknown setting; without this the default would silently stay in force.

    Raises:
        ConfigurationError: Names it, the known ones and the nearest of them.
    """
    for name in names:
        if name not in known:
            allowed = f"one of {', '.join(known)}{did_you_mean(name, known)}"
            raise ConfigurationError(f"{table} setting".lstrip(), name, allowed, source)


def read_settings(
    given: Mapping[str, Any], settings: Mapping[str, Setting], path: str, title: str
) -> dict[str, Any]:
    """Return the values of one table of ``ultramon.toml``, the default for what it leaves out.

    Args:
        given: The table.
        settings: Its settings, by name.
        path: The file.
        title: The name of the table.

    Raises:
        ConfigurationError: A setting is unknown or wrong; names it, the file and what is allowed.
    """
    check_settings(given, settings, path, f"[{title}]")
    return {
        name: one.kind.check(f"{title}.{name}", given[name], path) if name in given else one.default
        for name, one in settings.items()
    }


def did_you_mean(name: str, known: Iterable[str], texts: Mapping[str, str] | None = None) -> str:
    """Return ``; did you mean …?`` for the known name most like one; empty when none is.

    Args:
        name: The unknown name.
        known: The known ones.
        texts: What to show instead of a known name.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, _LEAST_LIKENESS)
    return f"; did you mean {(texts or {}).get(close[0], close[0])}?" if close else ""


def read_table(section: str) -> tuple[dict[str, Any], str]:
    """Return a table that one file decides as a whole, and that file's path; both empty without.

    The strongest file that has the table; never one of a project that is not trusted.

    Raises:
        ConfigurationError: A file of the user cannot be read or is no TOML, or the section in it is
            no table.
    """
    found: tuple[dict[str, Any], str] = {}, ""
    for file in settings_files():
        if not file.is_trusted:
            if refusal := refusal_of_all(file, section):
                log_refusal(refusal)
            continue
        table = table_of(file, section)
        if section in file.tables:
            found = table, file.path
    return found


def table_of(file: SettingsFile, section: str) -> dict[str, Any]:
    """Return one table of a trusted file.

    Raises:
        ConfigurationError: The section is no table, or a table has nearly the name of one.
    """
    for name in file.tables:
        if name not in TABLES and (hint := did_you_mean(name, TABLES)):
            raise ConfigurationError("table", name, f"one of {', '.join(TABLES)}{hint}", file.path)
    table = file.tables.get(section, {})
    if not isinstance(table, dict):
        raise ConfigurationError(section, table, "a table", file.path)
    return table


def refusal_of_all(project: SettingsFile, section: str) -> str:
    """Return the line about a table of which a project sets nothing; empty without the table."""
    table = project.tables.get(section, {})
    names = [*table] if isinstance(table, dict) else [""]
    return _refusal(project, section, names) if names or project.problem else ""


def _refusal(project: SettingsFile, section: str, names: Iterable[str]) -> str:
    """Return the line that names what of a project's file is not taken, why, and the cure."""
    from ultramon.system.terminal_text import sanitize

    # A name is the project's text, and an agent may read this line.
    shown = [
        f"{section}.{name}" if name.isidentifier() and len(name) <= _MAX_NAME_CHARS else section
        for name in names
    ]
    what = f"not taken: {', '.join(dict.fromkeys(shown))}, as " if shown else ""
    cure = "" if project.problem else f"; if you agree with all of it: {project.cure}"
    return sanitize(f"{project.path}: {what}{project.why_not()}{cure}")


def log_refusal(refusal: str, log: Callable[[str], None] | None = None) -> None:
    """Log that something of a project's file is not taken, once per process.

    Args:
        refusal: The line; `Settings.refusal`.
        log: Takes it; None = a warning of the logger ``ultramon``.
    """
    if refusal in _seen_refusals:
        return
    _seen_refusals.add(refusal)
    if log is not None:
        log(refusal)
        return
    from logging import getLogger

    getLogger("ultramon").warning("%s", refusal)
