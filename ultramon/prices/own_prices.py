"""Prices that a person has agreed on: a TOML file, read when a command names it.

date = 2026-11-01            # since when they hold; optional
list_price_factor = 0.85     # of the list price, for models not named below; optional

[usd_per_million_tokens."claude-opus-4-6"]
input = 4.25
output = 21.25
cache_read = 0.425           # optional, as are the next two: default `input`
cache_write = 5.3125
cache_write_1h = 8.5         # default `cache_write`
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from ultramon.context.limits import canonical_model_name
from ultramon.errors import ConfigurationError
from ultramon.prices.rates import Rates, TierRates
from ultramon.system.settings_files import parse_toml

_TABLE = "usd_per_million_tokens"
_TOP = ("date", "list_price_factor", _TABLE)
_MOST = 1_000_000
"""A dollar a token, and as a factor as much: beyond, what is multiplied may be infinite."""
_KEYS = ("input", "output", "cache_read", "cache_write", "cache_write_1h")


class OwnPrices(NamedTuple):
    """The prices of one file.

    Attributes:
        rates: By canonical model name.
        list_price_factor: Of the list price, for other models; None = the list price itself.
        date: Since when they hold, None where the file does not say.
    """

    rates: dict[str, Rates]
    list_price_factor: float | None = None
    date: datetime.date | None = None


def read_own_prices(path: str) -> OwnPrices:
    """Read a file of prices.

    Raises:
        ConfigurationError: It cannot be read, is no TOML, or holds a key or a value that is not
            allowed; says which.
    """
    try:
        with open(path, "rb") as stream:
            data = parse_toml(stream.read())
    except (OSError, ValueError) as error:  # ValueError: no TOML, or no UTF-8
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            "prices", path, f"a readable TOML file of prices ({reason})"
        ) from error
    # A misspelt key would let a default count without a sign.
    for name in data.keys() - set(_TOP):
        raise ConfigurationError(name, data[name], f"one of {', '.join(_TOP)}", path)
    date = data.get("date")
    # TOML reads a date with a time as a datetime, which is a date too.
    if isinstance(date, datetime.datetime):
        date = date.date()
    if date is not None and not isinstance(date, datetime.date):
        raise ConfigurationError("date", date, "a date such as 2026-11-01, without quotes", path)
    factor = data.get("list_price_factor")
    models = data.get(_TABLE, {})
    if not isinstance(models, dict):
        raise ConfigurationError(_TABLE, models, f'tables such as [{_TABLE}."model"]', path)
    rates: dict[str, Rates] = {}
    for model, prices in models.items():
        # Two tables for one model under two spellings: it would be chance which one counts.
        name = canonical_model_name(model)
        if not name or name in rates:
            raise ConfigurationError(
                _TABLE, model, "the name of a model that has no other table here", path
            )
        rates[name] = _read_rates(model, prices, path)
    return OwnPrices(
        rates,
        None if factor is None else _number("list_price_factor", factor, path),
        date,
    )


def _read_rates(model: str, prices: Any, path: str) -> Rates:
    where = f"{_TABLE}.{model}"
    if not isinstance(prices, dict):
        raise ConfigurationError(where, prices, "a table of prices", path)
    for key in prices.keys() - set(_KEYS):
        raise ConfigurationError(f"{where}.{key}", prices[key], f"one of {', '.join(_KEYS)}", path)
    found = {key: _number(f"{where}.{key}", value, path) for key, value in prices.items()}
    for key in ("input", "output"):
        if key not in found:
            raise ConfigurationError(f"{where}.{key}", None, "a number: input and output", path)
    write = found.get("cache_write", found["input"])
    tier = TierRates(
        above_tokens=0,
        input_usd=found["input"],
        cache_read_usd=found.get("cache_read", found["input"]),
        cache_write_usd=write,
        cache_write_1h_usd=found.get("cache_write_1h", write),
        output_usd=found["output"],
    )
    return Rates((tier,))


def _number(name: str, value: Any, path: str) -> float:
    # A bool is an int to Python, and TOML knows inf and nan.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST:
        allowed = f"a number, 0 or more, at most {_MOST:,}"
        raise ConfigurationError(name, value, allowed, path)
    return float(value)
