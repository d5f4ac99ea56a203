"""One chain for every setting: keyword, environment variable, ``ultramon.toml``, default.

A class of settings declares each of them once, with `setting`. Checks, answers to a misspelt name
and docs/settings.md follow from the declarations. Standard library only and cheap to import:
alerts read their settings after every command of a tool.
"""

from __future__ import annotations

import os

from ultramon.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        """Return a decorator that does nothing: importing `typing` costs 5 ms."""
        return lambda decorated: decorated


TOML_NAME = "ultramon.toml"
TABLES = {"context": "ULTRAMON_", "alerts": "ULTRAMON_ALERT_", "webhooks": ""}
"""The tables of that file, with the prefix of their environment variables. A name that is nearly
one of them is refused; other programs may keep any other table there."""
ARGUMENT = "argument"
REQUIRED = ...
"""In place of a default."""
MOST_TOKENS = 1_000_000_000
MOST_SECONDS = 31_536_000

_LEAST_LIKENESS = 0.78
"""Of two names, as `difflib` measures it; any two variables of ultramon are less alike."""
_seen_variables: set[str] = set()


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
    """

    __slots__ = ("default", "keys", "kind", "meaning", "name", "variable")

    def __init__(
        self,
        kind: Kind,
        default: Any,
        meaning: str,
        *,
        variable: str | None = None,
        keys: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.default = default
        self.meaning = meaning
        self.variable = variable
        self.keys = keys
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
        self, given: Mapping[str, Any], table: Mapping[str, Any], table_source: str
    ) -> tuple[Any, str | None]:
        """Return the checked value and its source; None as the source of a default.

        Raises:
            ConfigurationError: The value is not allowed.
        """
        layers = [(table[self.name], table_source)] if self.name in table else []
        for key, variable in zip(self.keys or (None,), self.variables, strict=False):
            if text := os.environ.get(variable):
                value = self.kind.parse(text) if key is None else {key: text}
                layers.append((value, variable))
        if self.name in given:
            layers.append((given[self.name], ARGUMENT))
        value, source = self.default, None
        if isinstance(value, dict):
            value = dict(value)
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
    """

    settings: ClassVar[dict[str, Setting]]
    sources: dict[str, str]

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
        table, path = read_toml(self._table)
        check_settings(table, self.settings, path, f"[{self._table}]")
        self._warn_of_misspelt_variables()
        values = vars(self)
        sources = values["sources"] = {}
        for name, one in self.settings.items():
            values[name], source = one.resolve(given, table, f"{path} [{self._table}]")
            if source is not None:
                sources[name] = source
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that contradict each other."""

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


def read_toml(section: str) -> tuple[dict[str, Any], str]:
    """Return one table of ``ultramon.toml`` and the file's path; both empty without a file.

    The file is ``ULTRAMON_CONFIG``, else the one in the working directory, else the one in the
    user's configuration directory.

    Raises:
        ConfigurationError: The file cannot be read or is no TOML, or the section is no table.
    """
    named = os.environ.get("ULTRAMON_CONFIG")
    for path in [os.path.expanduser(named)] if named else _toml_paths():
        if not named and not os.path.exists(path):
            continue
        import tomllib

        try:
            with open(path, "rb") as file:
                tables = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            source = "ULTRAMON_CONFIG" if named else path
            raise ConfigurationError(path, str(error), "a readable TOML file", source) from error
        for name in tables:
            if name not in TABLES and (hint := did_you_mean(name, TABLES)):
                raise ConfigurationError("table", name, f"one of {', '.join(TABLES)}{hint}", path)
        table = tables.get(section, {})
        if not isinstance(table, dict):
            raise ConfigurationError(section, table, "a table", path)
        return table, path
    return {}, ""


def _toml_paths() -> list[str]:
    from platformdirs import user_config_dir

    try:
        home = user_config_dir("ultramon", appauthor=False)
    except RuntimeError:
        return [TOML_NAME]
    return [TOML_NAME, os.path.join(home, TOML_NAME)]
