"""How results of checks are printed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.output import print_json, sanitize_values
from ultramon.system.findings import PROBLEM, WARNING
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.system.findings import Finding

_MAX_LINE_CHARS = 2_000


def finding_line(finding: Finding) -> str:
    """Write a finding and its cure, for people."""
    cure = f"; {finding.cure}" if finding.cure else ""
    return sanitize(f"{finding.check}: {finding.message}{cure}", max_chars=_MAX_LINE_CHARS)


def print_findings(findings: Iterable[Finding], *, as_json: bool, **facts: Any) -> tuple[int, int]:
    """Print findings as JSON behind some facts, or in lines.

    Returns:
        How many problems and warnings are among them.
    """
    shown = list(findings)
    count = Counter(finding.status for finding in shown)
    problems, warnings = count[PROBLEM], count[WARNING]
    if as_json:
        facts["findings"] = [sanitize_values(finding._asdict()) for finding in shown]
        print_json({**facts, "problems": problems, "warnings": warnings})
    else:
        for finding in shown:
            click.echo(f"{finding.status:<8} {finding_line(finding)}")
    return problems, warnings
