"""Which variable or file sets what, for the doctor."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from ultramon.cli.gone_variables import gone_variable_errors
from ultramon.errors import ConfigurationError
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECK = "settings"


class _Collector(logging.Handler):
    """Keeps what is logged while the settings are read; without it stderr would have it twice."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def settings_findings() -> Iterator[Finding]:
    """Yield a finding per source of settings in this directory, and per line about the others."""
    for gone in gone_variable_errors():
        yield Finding(_CHECK, WARNING, f"{gone.name} is set", f"it must be {gone.allowed}")
    collector, log = _Collector(), logging.getLogger("ultramon")
    log.addHandler(collector)
    try:
        found, refusals = _read()
    except ConfigurationError as error:
        yield Finding(_CHECK, PROBLEM, str(error), "correct it there")
        return
    finally:
        log.removeHandler(collector)
    for source, names in found.items():
        yield Finding(_CHECK, OK, f"{source} sets {', '.join(names)}")
    for line in dict.fromkeys([*refusals, *collector.lines]):
        message, _, cure = line.partition("; ")
        yield Finding(_CHECK, WARNING, message, cure or None)
    if not found and not refusals:
        yield Finding(_CHECK, OK, "all have their defaults")


def _read() -> tuple[dict[str, list[str]], list[str]]:
    """Return the settings by their source, and the lines about what is not taken."""
    from ultramon.alerts.config import AlertConfig
    from ultramon.context.config import ContextConfig
    from ultramon.notices.budgets import read_budgets
    from ultramon.notices.commands import read_commands
    from ultramon.system.settings import read_table, refusal_of_all
    from ultramon.system.settings_files import settings_files

    found: defaultdict[str, list[str]] = defaultdict(list)
    refusals = []
    for table, config in (("context", ContextConfig()), ("alerts", AlertConfig())):
        for name, source in config.sources.items():
            found[source.removesuffix(f" [{table}]")].append(f"{table}.{name}")
        refusals.append(config.refusal)
    read_budgets()  # checks them
    read_commands()
    for section in ("webhooks", "budgets", "on"):
        values, path = read_table(section)
        for name in values:
            found[path].append(f"{section}.{name}")
        refusals += [
            refusal_of_all(file, section) for file in settings_files() if not file.is_trusted
        ]
    return found, [line for line in refusals if line]
