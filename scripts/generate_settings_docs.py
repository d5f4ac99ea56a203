"""Write the tables of docs/settings.md, between the marks that name each, from the declarations.

Run it after a change of a setting: python scripts/generate_settings_docs.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ultramon.alerts.config import AlertConfig
from ultramon.context.config import ContextConfig
from ultramon.context.shared_levels import SharedLevels
from ultramon.notices.budgets import BUDGET_SETTINGS
from ultramon.notices.commands import COMMAND_SETTINGS
from ultramon.notices.crossings import PlanLevels
from ultramon.server.workers.webhooks import SETTINGS, TARGET_SETTINGS
from ultramon.system.environment import GIVEN_VARIABLES, VARIABLES
from ultramon.system.settings import REQUIRED, Setting

DOCS = Path(__file__).parent.parent / "docs" / "settings.md"
TABLES = {
    "levels": SharedLevels.settings,
    "context": ContextConfig.settings,
    "alerts": AlertConfig.settings,
    "plan": PlanLevels.settings,
    "budgets": BUDGET_SETTINGS,
    "on": COMMAND_SETTINGS,
    "webhooks": SETTINGS,
    "webhooks.targets": TARGET_SETTINGS,
}
_MARKED = re.compile(r"(<!-- settings: ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _default(value: object) -> str:
    if value is REQUIRED:
        return "required"
    if isinstance(value, Mapping):
        return "<br>".join(f"{key}: {text}" for key, text in value.items()) or "`{}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return "none" if value is None else f"`{value:,}`" if isinstance(value, int) else f"`{value}`"


def _settings(settings: Mapping[str, Setting]) -> Iterator[str]:
    yield "| setting | values | unit | default | from a project | meaning |"
    yield "|---|---|---|---|---|---|"
    for name, one in settings.items():
        from_project = "" if one.from_project is None else one.from_project.allowed
        yield (
            f"| `{name}` | {one.kind.allowed.replace('<', '&lt;')} | {one.kind.unit} |"
            f" {_default(one.default)} | {from_project} | {one.meaning} |"
        )


def variables() -> dict[str, str]:
    """Return every environment variable that is a setting, sorted, with its meaning."""
    found = {f"ULTRAMON_{name}": meaning for name, meaning in VARIABLES.items()}
    for table in ("context", "alerts", "plan"):
        for name, one in TABLES[table].items():
            for variable, key in zip(one.variables, one.keys or ("",), strict=False):
                found.setdefault(variable, f"`{name}{key and f'.{key}'}` of `[{table}]`.")
    return dict(sorted(found.items()))


def given_variables() -> dict[str, str]:
    """Return the variables that ultramon gives to processes, sorted, with their meanings."""
    return {f"ULTRAMON_{name}": meaning for name, meaning in sorted(GIVEN_VARIABLES.items())}


def _variables(listed: Mapping[str, str]) -> Iterator[str]:
    yield "| variable | meaning |"
    yield "|---|---|"
    for name, meaning in listed.items():
        yield f"| `{name}` | {meaning} |"


def render(document: str) -> str:
    """Return the document with fresh tables."""

    def table(match: re.Match[str]) -> str:
        lists = {"environment": variables, "given": given_variables}
        listed = lists.get(match[2])
        lines = _settings(TABLES[match[2]]) if listed is None else _variables(listed())
        return "\n".join([match[1].rstrip(), *lines, match[3]])

    return _MARKED.sub(table, document)


if __name__ == "__main__":
    DOCS.write_text(render(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
