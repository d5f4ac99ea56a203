"""`ultramon share`: shows this machine's agents in a database that several machines share."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.extras import extra_needed
from ultramon.cli.output import json_line, plural, print_json, print_result, say
from ultramon.cli.selection import chosen_directory, store_options, time_span
from ultramon.cli.views.findings import print_findings
from ultramon.system.findings import OK

if TYPE_CHECKING:
    from ultramon.share.choices import Choices

_WAIT_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_NO_NAMES = "none"


@click.command(
    "share", epilog="Example: ultramon share postgresql://anna@db.example.org/agents --show"
)
@click.argument("url", required=False)
@click.option(
    "--url-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A file of mode 0600 with the URL and its password on the first line.",
)
@click.option(
    "--with",
    "with_names",
    metavar="NAMES",
    help="Send these texts too: labels, tasks, paths, separated by commas; none = no text.",
)
@click.option("--name", metavar="TEXT", help="What this machine is called there.")
@click.option(
    "--keep",
    type=time_span,
    metavar="TIME",
    help="How long rows stay there after their agent has ended.  [default: 30d]",
)
@click.option("--show", is_flag=True, help="Print the rows that would be sent; send nothing.")
@click.option("--id", "agent", metavar="AGENT", help="Print the id that an agent has there.")
@click.option("--start", is_flag=True, help="Share again, as chosen before.")
@click.option("--stop", is_flag=True, help="Send nothing any more.")
@click.option("--erase", is_flag=True, help="With --stop: delete there what was sent.")
@click.option("--foreground", is_flag=True, help="Share in this process, for a service.")
@store_options
def command(
    *,
    url: str | None,
    url_file: str | None,
    with_names: str | None,
    name: str | None,
    keep: float | None,
    show: bool,
    agent: str | None,
    start: bool,
    stop: bool,
    erase: bool,
    foreground: bool,
    state_dir: str | None,
    json: bool,
) -> ExitCode | None:
    """Show this machine's agents in a database for many machines.

    With the URL of a PostgreSQL store, or --url-file, it begins: a process in the background
    mirrors the agents of the state directory, and every screen shows them over ULTRAMON_BACKEND.
    Without either it says what is sent, and fails where that does not work. Numbers, times, levels,
    models and hosts are sent, and ids that lead back to nothing; labels, tasks and paths only if
    --with names them; prompts, handoffs and notes never.

    The URL must not hold a password: put it into ~/.pgpass, a service file, or --url-file.
    """
    with extra_needed("ultramon share", "postgres"):
        from ultramon.share import choices as chosen
        from ultramon.share.report import facts_of, findings
    directory = chosen_directory(state_dir)
    if erase and not stop:
        raise click.UsageError("--erase belongs to --stop")
    stored = chosen.load_choices(directory)
    given = _given(url=url, url_file=url_file, with_names=with_names, name=name, keep=keep)
    wanted = stored
    if given:
        wanted = (stored or chosen.Choices(None, None))._replace(**given)
    if show:
        _show(directory, wanted)
        return None
    if agent is not None:
        _print_id(directory, agent, as_json=json)
        return None
    if stop:
        _stop(directory, stored, erase=erase, as_json=json)
        return None
    if wanted is None or (wanted.url is None and wanted.url_file is None):
        raise CommandFailed(
            "nothing is shared from this machine; ultramon share URL begins, and --show prints what"
            " would be sent"
        )
    is_new = start or wanted != stored
    if is_new:
        wanted = wanted._replace(is_on=True)
        wanted.read_url()
        _make_directory(directory)
        wanted.save(directory)
    if foreground:
        return _share_here(directory)
    if is_new:
        _begin(directory)
    now = time.time()
    if json:
        print_json(facts_of(directory, wanted, now))
        is_fine = all(one.status == OK for one in findings(directory, now))
    else:
        from ultramon.share.report import sent_words

        problems, warnings = print_findings(findings(directory, now), as_json=False)
        is_fine = not (problems or warnings)
        if wanted.is_on:
            say(f"{sent_words(wanted.names)}; --show prints the rows")
    return ExitCode.OK if is_fine else ExitCode.FAILURE


def _given(
    *,
    url: str | None,
    url_file: str | None,
    with_names: str | None,
    name: str | None,
    keep: float | None,
) -> dict[str, Any]:
    """Return what was chosen now, by the fields of `Choices`."""
    from ultramon.share import choices as chosen

    if url is not None and url_file is not None:
        raise click.UsageError("give either a URL or --url-file")
    given: dict[str, Any] = {}
    if url is not None:
        given |= {"url": chosen.refuse_password(url), "url_file": None}
    if url_file is not None:
        given |= {"url": None, "url_file": os.path.abspath(url_file)}
    if with_names is not None:
        names = [] if with_names == _NO_NAMES else with_names.split(",")
        given["names"] = chosen.check_names(names)
    if name is not None:
        given["machine_name"] = chosen.check_machine_name(name)
    if keep is not None:
        given["retention_seconds"] = chosen.check_retention(keep)
    return given


def _show(directory: str, wanted: Choices | None) -> None:
    from ultramon.share.choices import Choices
    from ultramon.share.shown import rows_to_send

    choices = wanted or Choices(None, None)
    rows = rows_to_send(directory, choices.names, choices.retention_seconds, choices.machine_name)
    for table, row in rows:
        click.echo(json_line({"table": table, "row": row}))


def _print_id(directory: str, agent: str, *, as_json: bool) -> None:
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.cli.selection import find_agent
    from ultramon.share.identity import load_identity

    identity = load_identity(directory)
    if identity is None:
        raise CommandFailed("this machine has no ids there: it has not shared yet")
    own = find_agent(LocalBackend(directory), agent).agent_id
    there = identity.agent_id(own)
    print_result({"agentId": own, "sharedId": there}, there, as_json=as_json)


def _stop(directory: str, stored: Choices | None, *, erase: bool, as_json: bool) -> None:
    if stored is None:
        raise CommandFailed("nothing is shared from this machine")
    stored = stored._replace(is_on=False)
    stored.save(directory)
    _wait_for_end(directory)
    facts: dict[str, object] = {"isOn": False, "erased": None}
    lines = ["Nothing is sent any more; --stop --erase deletes what was sent"]
    if erase:
        from ultramon.hosts.resident.sharing import CHOICES_FILE
        from ultramon.share.shown import erase as erase_rows
        from ultramon.system.files import delete_file

        deleted = erase_rows(directory, stored) or {}
        # Last: until then the URL is known, and the command can be given again.
        delete_file(os.path.join(directory, CHOICES_FILE))
        facts["erased"] = deleted
        shown = ", ".join(plural(count, table[:-1]) for table, count in deleted.items() if count)
        lines = [f"Nothing is sent any more; deleted there: {shown or 'nothing was there'}"]
    print_result(facts, *lines, as_json=as_json)


def _wait_for_end(directory: str) -> None:
    from ultramon.hosts.resident.sharing import is_running

    deadline = time.monotonic() + _WAIT_SECONDS
    while is_running(directory):
        if time.monotonic() >= deadline:
            raise CommandFailed("the process that shares does not end; try again, or kill it")
        time.sleep(_LOOK_SECONDS)


def _make_directory(directory: str) -> None:
    from ultramon.system.files import make_private_directory

    make_private_directory(directory)


def _share_here(directory: str) -> ExitCode:
    import logging

    from ultramon.share.process import share

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    return ExitCode.OK if share(directory) == 0 else ExitCode.FAILURE


def _begin(directory: str) -> None:
    """Start the process, and wait a moment for what the database says."""
    from ultramon.hosts.resident.sharing import Starter
    from ultramon.share.status import read_status
    from ultramon.system.timestamps import parse_time

    # Times in the file have milliseconds.
    began_at = time.time() - 0.001
    starter, deadline = Starter(directory), time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        # One that ran with other choices begins anew with these.
        starter.start()
        facts = read_status(directory) or {}
        is_new = (parse_time(facts.get("since")) or 0.0) >= began_at
        if is_new and facts["isRunning"] and (facts["sentAt"] or facts["problem"]):
            return
        time.sleep(_LOOK_SECONDS)
