"""The limits of a provider's plan: how much of each an account has used, and when it resets.

One small file an account in the state directory. An account is a host's configuration directory:
its sessions share the limits. Standard library only: hooks and status lines write it.
"""

from __future__ import annotations

import os
from math import isfinite
from time import gmtime, localtime, strftime
from zlib import crc32

from ultramon.errors import StateCorruptError, StateError
from ultramon.state.usage_percent import whole_percent
from ultramon.system import compact_json
from ultramon.system.files import (
    delete_quietly,
    make_private_directory,
    open_private,
    read_private_file,
    refused,
    replace_file,
)
from ultramon.system.ids import random_hex
from ultramon.system.locks import Lock, LockedError
from ultramon.system.timestamps import format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SCHEMA = 1
FOLDER = "plan-limits"
"""Of the state directory."""
FIVE_HOURS, SEVEN_DAYS = "five_hour", "seven_day"
SAME_PERIOD_SECONDS = 300.0
"""Resets that are no further apart are one: Codex reckons them anew with each reply, and the
shortest period of a plan has five hours."""
DAY_SECONDS = 86_400.0
"""A reset so far ahead is shown with its day."""
FRESH_SECONDS = 60.0
"""A newer measurement of what is stored is written only when the stored one is so old."""
LONGEST_PERIOD_SECONDS = 40 * 86_400.0
"""A reset further ahead is no time that a provider gave."""
LOCK_SECONDS = 0.05
KEPT_CORRUPT_FILES = 3
_BRIEF = {FIVE_HOURS: "5h", SEVEN_DAYS: "week"}
_MOST_PERCENT = 10_000.0
_MAX_FILE_BYTES = 16_384
_MAX_LIMITS = 20
_MAX_NAME_CHARS = 60
_SUFFIX = ".json"
_CORRUPT = ".corrupt-"


class PlanLimit:
    """One limit of an account.

    Attributes:
        name: ``five_hour``, ``seven_day``, or the host's own name for another period.
        used_ratio: The share of it that is used, 0.0–1.0+; 1.0 is the limit.
        resets_at: Epoch seconds.
        measured_at: When the provider said so, as far as that is known; epoch seconds.
    """

    __slots__ = ("measured_at", "name", "resets_at", "used_ratio")

    def __init__(self, name: str, used_ratio: float, resets_at: float, measured_at: float) -> None:
        self.name = name
        self.used_ratio = used_ratio
        self.resets_at = resets_at
        self.measured_at = measured_at

    def _values(self) -> tuple[object, ...]:
        return self.name, self.used_ratio, self.resets_at, self.measured_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanLimit) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"PlanLimit{self._values()}"

    @property
    def percent(self) -> int:
        """The used share in whole percents, rounded down: 100 is reached, not near."""
        return whole_percent(self.used_ratio, rounds=False)

    def to_json(self) -> dict[str, Any]:
        """Return the values as the file and ``status --json`` hold them."""
        return {
            "usedRatio": self.used_ratio,
            "resetsAt": format_time(self.resets_at),
            "measuredAt": format_time(self.measured_at),
        }


class AccountPlan:
    """The limits of one account.

    Attributes:
        host: Name of the host.
        account: Its configuration directory, absolute.
        limits: Those that are known and not past their reset, the shortest period first.
    """

    __slots__ = ("account", "host", "limits")

    def __init__(self, host: str, account: str, limits: Iterable[PlanLimit]) -> None:
        self.host = host
        self.account = account
        self.limits = sorted(limits, key=_order)

    @property
    def name(self) -> str:
        """The configuration directory for people and labels: ``~/.claude``."""
        home = os.path.expanduser("~")
        inside = self.account.startswith(home + os.sep)
        return "~" + self.account[len(home) :] if inside else self.account

    def to_json(self) -> dict[str, Any]:
        """Return the account as ``status --json`` shows it."""
        limits = {limit.name: limit.to_json() for limit in self.limits}
        return {"account": self.name, "host": self.host, "limits": limits}


def plan_limit(
    name: str, used_percent: object, resets_at: object, measured_at: float
) -> PlanLimit | None:
    """Return a limit of the values that a host reported; None where they make no sense.

    Args:
        name: Its name.
        used_percent: The used share, 100 is the limit.
        resets_at: Epoch seconds.
        measured_at: Epoch seconds.
    """
    if not (0 < len(name) <= _MAX_NAME_CHARS and name.isascii() and name.isprintable()):
        return None
    percent, resets = finite_number(used_percent), finite_number(resets_at)
    if percent is None or resets is None or not (0 <= percent <= _MOST_PERCENT and resets > 0):
        return None
    return PlanLimit(name, round(percent / 100, 6), resets, measured_at)


def newer(stored: PlanLimit | None, seen: PlanLimit) -> PlanLimit:
    """Return what is known of a limit after one more reading of it.

    A payload's numbers are as old as its session's last reply, so that a later payload may be the
    older reading. Within one period usage only rises: the higher reading is the newer one. Of two
    periods the one that ends later is.
    """
    if stored is None or seen.resets_at > stored.resets_at + SAME_PERIOD_SECONDS:
        return seen
    if seen.resets_at < stored.resets_at - SAME_PERIOD_SECONDS:
        return stored
    if seen.used_ratio < stored.used_ratio:
        return stored
    # The first reset of a period stays: it names the period.
    measured_at = max(stored.measured_at, seen.measured_at)
    return PlanLimit(seen.name, seen.used_ratio, stored.resets_at, measured_at)


class PlanLimits:
    """The limits of all accounts in a state directory.

    Args:
        directory: The state directory.
    """

    __slots__ = ("folder",)

    def __init__(self, directory: str) -> None:
        self.folder = os.path.join(os.path.abspath(directory), FOLDER)

    def accounts(self, now: float) -> list[AccountPlan]:
        """Return the accounts with a limit that is known now; a damaged file is passed over.

        Args:
            now: Epoch seconds.
        """
        found = []
        for path in self._files():
            try:
                account = _read(path, now)
            except (StateError, OSError):
                continue  # `damaged` names it
            if account.limits:
                found.append(account)
        return sorted(found, key=lambda one: (one.host, one.account))

    def account(self, host: str, account: str, now: float) -> AccountPlan:
        """Return one account; without limits where none are known."""
        try:
            return _read(self._file(host, account), now)
        except (StateError, OSError):
            return AccountPlan(host, account, ())

    def record(self, host: str, account: str, seen: Iterable[PlanLimit], now: float) -> AccountPlan:
        """Take limits that a host reported; return what is known of the account.

        Writes only where a whole percent, a period or a limit is new, or what is stored is older
        than a minute.

        Args:
            host: Name of the host.
            account: Its configuration directory, absolute.
            seen: The limits; those past their reset change nothing.
            now: Epoch seconds.

        Raises:
            StateError: The folder is not safe to use, or the file system refused.
        """
        seen = [_measured_by(one, now) for one in seen if _is_ahead(one.resets_at, now)]
        path = self._file(host, account)
        known, must_write = _merge(self.account(host, account, now), seen)
        if not must_write:
            return known
        make_private_directory(os.path.dirname(self.folder))
        make_private_directory(self.folder)
        try:
            with Lock(path + ".lock", open_private, LOCK_SECONDS):
                known, must_write = _merge(self._read_to_replace(host, account, path, now), seen)
                if must_write:
                    replace_file(path, _encode(known))
        except LockedError:
            pass  # another session writes: the next call brings this reading again
        return known

    def damaged(self) -> list[str]:
        """Return the names of files that cannot be read, and of those that were set aside."""
        names = [name for name in self._names() if _CORRUPT in name]
        for path in self._files():
            try:
                _read(path, 0.0)
            except StateError as error:
                names.append(f"{os.path.basename(path)} ({error.reason})")
            except OSError:
                continue
        return sorted(names)

    def _read_to_replace(self, host: str, account: str, path: str, now: float) -> AccountPlan:
        """Return what is stored; a file that cannot be read is set aside as evidence."""
        try:
            known = _read(path, now)
            if known.account == account:
                return known
        except FileNotFoundError:
            return AccountPlan(host, account, ())
        except StateCorruptError:
            pass
        except OSError as error:
            raise refused(path, "cannot be read", error) from error
        try:
            os.rename(path, f"{path}{_CORRUPT}{int(now)}-{random_hex(2)}")
        except OSError as error:
            raise refused(path, "cannot be set aside", error) from error
        older = sorted(n for n in self._names() if n.startswith(os.path.basename(path) + _CORRUPT))
        for name in older[:-KEPT_CORRUPT_FILES]:
            delete_quietly(os.path.join(self.folder, name))
        return AccountPlan(host, account, ())

    def _file(self, host: str, account: str) -> str:
        number = crc32(account.encode("utf-8", "surrogatepass"))
        return f"{self.folder}{os.sep}{host}-{number:08x}{_SUFFIX}"

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except OSError:
            return []

    def _files(self) -> list[str]:
        return [os.path.join(self.folder, n) for n in self._names() if n.endswith(_SUFFIX)]


def brief_words(account: AccountPlan, now: float) -> list[str]:
    """Return each limit of an account for a line with little room: ``5h 62% →16:40``, local time.

    Args:
        account: The account.
        now: Epoch seconds.
    """
    words = []
    for one in account.limits:
        reset = clock_words(one.resets_at, now, "%a")
        words.append(f"{brief_name(one.name)} {one.percent}% →{reset}")
    return words


def clock_words(at: float, now: float, far: str, *, utc: bool = False) -> str:
    """Return a time ahead: ``16:40`` within a day.

    Args:
        at: Epoch seconds.
        now: Epoch seconds.
        far: The format of a later one, as of `strftime`.
        utc: Whether in UTC, with a Z, for readers that may be elsewhere; else in local time.
    """
    form = "%H:%M" if at - now < DAY_SECONDS else far
    return f"{strftime(form, gmtime(at))}Z" if utc else strftime(form, localtime(at))


def brief_name(limit_name: str) -> str:
    """Return the name of a limit in few cells: ``5h``, ``week``, else as it is."""
    return _BRIEF.get(limit_name, limit_name)


def finite_number(value: object) -> float | None:
    """Return a number of a payload as a float; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def _is_ahead(resets_at: float, now: float) -> bool:
    return now < resets_at <= now + LONGEST_PERIOD_SECONDS


def _measured_by(limit: PlanLimit, now: float) -> PlanLimit:
    """Return a limit that was not measured in the future, as of a clock that was set back."""
    at = min(limit.measured_at, now)
    return PlanLimit(limit.name, limit.used_ratio, limit.resets_at, at)


def _order(limit: PlanLimit) -> tuple[bool, bool, str]:
    return limit.name != FIVE_HOURS, limit.name != SEVEN_DAYS, limit.name


def _merge(known: AccountPlan, seen: list[PlanLimit]) -> tuple[AccountPlan, bool]:
    """Return an account with more readings, and whether that is worth a write."""
    limits = {limit.name: limit for limit in known.limits}
    must_write = False
    for one in seen:
        before = limits.get(one.name)
        if before is None and len(limits) >= _MAX_LIMITS:
            continue
        after = limits[one.name] = newer(before, one)
        must_write |= (
            before is None
            or (before.percent, before.resets_at) != (after.percent, after.resets_at)
            or after.measured_at >= before.measured_at + FRESH_SECONDS
        )
    return AccountPlan(known.host, known.account, limits.values()), must_write


def _encode(account: AccountPlan) -> bytes:
    value = {
        "schema": SCHEMA,
        "host": account.host,
        "account": account.account,
        "limits": {limit.name: limit.to_json() for limit in account.limits},
    }
    return compact_json.dumps(value).encode("ascii") + b"\n"


def _read(path: str, now: float) -> AccountPlan:
    data, _ = read_private_file(path, _MAX_FILE_BYTES)
    try:
        value = compact_json.loads(data)
        limits = []
        for name, one in value["limits"].items():
            ratio, resets_at = finite_number(one["usedRatio"]), parse_time(one["resetsAt"])
            measured_at = parse_time(one["measuredAt"])
            if ratio is None or resets_at is None or measured_at is None:
                raise ValueError(f"limit {name!r} makes no sense")
            if _is_ahead(resets_at, now):
                limits.append(PlanLimit(str(name), ratio, resets_at, measured_at))
        return AccountPlan(str(value["host"]), str(value["account"]), limits)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateCorruptError(path, f"no limits of a plan: {error}") from error
