"""`ultramon context forget`: forgets where hosts were seen to compact by themselves."""

from __future__ import annotations

import os

import click

from ultramon.cli.commands.install import named_host
from ultramon.cli.output import plural, print_result
from ultramon.cli.selection import directory_of, open_store, store_options


@click.command("forget", epilog="Example: ultramon context forget --host codex")
@click.option("--host", metavar="NAME", help="Only of this host.  [default: all hosts]")
@store_options
def command(*, host: str | None, state_dir: str | None, json: bool) -> None:
    """Forget where hosts were seen to compact by themselves.

    After two automatic compactions that agree within 3 %, for the same version, model and window of
    a host, forecasts name a likely compaction. This forgets the compactions that were noted, for
    example after other settings of the host; the next ones are noted again.
    """
    from ultramon.hosts.calls.invocation import COMPACTIONS_SUFFIX
    from ultramon.hosts.calls.learned_compactions import forget
    from ultramon.hosts.registry import host_names

    names = host_names() if host is None else [named_host(host, {}).name]
    directory = directory_of(open_store(state_dir))
    counts = {name: forget(os.path.join(directory, name + COMPACTIONS_SUFFIX)) for name in names}
    forgotten = {name: count for name, count in counts.items() if count}
    lines = [
        f"{name}: {plural(count, 'compaction')} forgotten" for name, count in forgotten.items()
    ]
    print_result({"forgotten": forgotten}, *(lines or ["nothing to forget"]), as_json=json)
