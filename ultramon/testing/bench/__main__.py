"""``python -m ultramon.testing.bench``: the benches of the test kit."""

from __future__ import annotations

import json as json_text
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import click

from ultramon.testing.bench.faults import DEFAULT_RATIO, FAULTS
from ultramon.testing.bench.job import DEFAULT_REQUEST_SECONDS, BenchJob
from ultramon.testing.bench.report import lines, total
from ultramon.testing.bench.runner import CommandError, find_program, run_job

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "orchestrators")
_RELAY = (sys.executable, os.path.join(_FOLDER, "relay.py"))
EXAMPLES = {
    "bare-loop": ("sh", os.path.join(_FOLDER, "bare_loop.sh")),
    "checked-loop": ("sh", os.path.join(_FOLDER, "checked_loop.sh")),
    "relay": (*_RELAY, "1"),
    "relay-merged": (*_RELAY, "1", "--merged"),
    "relay-4": (*_RELAY, "4", "--merged"),
}
"""Orchestrators that come with the bench, by name."""


@click.group()
def main() -> None:
    """Measure orchestrators of agents."""


@main.command("relay", context_settings={"allow_interspersed_args": False})
@click.argument("command_line", metavar="[-- COMMAND...]", nargs=-1)
@click.option(
    "--example",
    type=click.Choice(list(EXAMPLES)),
    help="An orchestrator that comes with the bench, in the place of COMMAND.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100_000), default=5, show_default=True, help="How many seeds."
)
@click.option(
    "--first-seed", type=click.IntRange(0), default=0, show_default=True, help="The first of them."
)
@click.option(
    "--items", type=click.IntRange(1, 999), default=40, show_default=True, help="Items of a job."
)
@click.option(
    "--faults",
    metavar="NAMES",
    default=",".join(FAULTS),
    show_default=True,
    help="Which faults agents have, with commas; `none` for none.",
)
@click.option(
    "--fault-ratio",
    type=click.FloatRange(0.0, 1.0),
    default=DEFAULT_RATIO,
    show_default=True,
    help="How probable each fault of an attempt is.",
)
@click.option(
    "--request-seconds",
    type=click.FloatRange(0.0, 60.0),
    default=DEFAULT_REQUEST_SECONDS,
    show_default=True,
    help="How long the model takes for a request.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86_400.0),
    default=300.0,
    show_default=True,
    help="Seconds for COMMAND with one seed; then it is ended with all that it started.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, resolve_path=True),
    help="A directory for the jobs, their histories and what COMMAND prints.  [default: removed]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def relay(
    *,
    command_line: tuple[str, ...],
    example: str | None,
    seeds: int,
    first_seed: int,
    faults: str,
    keep: str | None,
    timeout: float,
    as_json: bool,
    items: int,
    **given: Any,
) -> None:
    """Have an orchestrator do a list of items with agents that cannot be relied on.

    For each seed COMMAND is started in a fresh git repository. It finds the list, the program that
    is an agent, and the check of an item as {items}, {agent} and {check} in its words, or as
    BENCH_ITEMS and so on in its environment, and writes what it believes done into {answer}. What
    is judged is the tree and a history of the agents' own. docs/relay-bench.md is the contract.

    Exit codes: 0 whatever the result, 2 where the bench itself could not run.
    """
    if bool(command_line) == bool(example):
        raise click.UsageError("give either a COMMAND, behind --, or --example")
    names = tuple(name for name in faults.split(",") if name != "none")
    if unknown := [name for name in names if name not in FAULTS]:
        allowed = f"choose of {', '.join(FAULTS)}, or none"
        raise click.UsageError(f"there is no fault {unknown[0]!r}: {allowed}")
    runs = []
    try:
        words = find_program(EXAMPLES[example] if example else command_line)
        for seed in range(first_seed, first_seed + seeds):
            with ExitStack() as stack:
                folder = _folder(keep, seed, stack)
                job = BenchJob(folder, seed, items, names, **given)
                runs.append(run_job(job, words, timeout_seconds=timeout))
            found = runs[-1].numbers()
            click.echo(f"seed {seed}: {found['verified']} of {items} verified", err=True)
    except (CommandError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        facts = {
            "bench": "relay",
            "command": example or list(command_line),
            "items": items,
            "faults": list(names),
            "faultRatio": given["fault_ratio"],
            "requestSeconds": given["request_seconds"],
            "runs": [run.to_json() for run in runs],
            "total": total(runs),
        }
        click.echo(json_text.dumps(facts, indent=2))
        return
    for line in lines(runs):
        click.echo(line)


def _folder(keep: str | None, seed: int, stack: ExitStack) -> str:
    """Return the new folder of a seed, which ends with the stack unless it is to be kept."""
    if keep is not None:
        folder = os.path.join(keep, f"seed-{seed}")
        os.makedirs(folder)
        return folder
    folder = tempfile.mkdtemp(prefix="relay-bench-")
    # What still writes there is no reason to end the bench.
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


if __name__ == "__main__":
    main(prog_name=f"python -m {__package__}")
