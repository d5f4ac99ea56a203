"""`ultramon trust`: take everything that the settings file of a project says."""

from __future__ import annotations

import os

import click

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import plural, print_result
from ultramon.cli.selection import json_option
from ultramon.errors import StateError

_HASH_CHARS = 12


@click.command("trust", epilog="Example: ultramon trust ~/projects/site")
@click.argument("directory", metavar="DIR", required=False)
@click.option("--list", "is_list", is_flag=True, help="List the trusted files.")
@click.option("--remove", "is_removal", is_flag=True, help="Trust the file of DIR no longer.")
@json_option
def command(*, directory: str | None, is_list: bool, is_removal: bool, json: bool) -> None:
    """Trust the ultramon.toml of a project, as it is now.

    Of a project that is not trusted only what has its agents warned earlier is taken. A file that
    is changed later is no longer trusted. Read it first: webhooks in it get messages of your
    agents, commands in it are run, and the files that it names are not part of what is trusted.

    DIR is the directory of the file; the default is the working directory.
    """
    from ultramon.system import trusted_files
    from ultramon.system.settings_files import TOML_NAME, project_path

    try:
        if is_list:
            if directory is not None or is_removal:
                raise click.UsageError("--list excludes DIR and --remove")
            _print_list(json=json)
            return
        path = os.path.abspath(os.path.join(directory or os.curdir, TOML_NAME))
        if is_removal:
            was_trusted = trusted_files.distrust(path)
            line = f"{path} {'is trusted no longer' if was_trusted else 'was not trusted'}"
            print_result({"path": path, "removed": was_trusted}, line, as_json=json)
            return
        if project_path(directory or os.curdir) is None:
            raise CommandFailed(f"there is no {path} to trust")
        _trust(path, json=json)
    except (StateError, OSError) as error:
        raise CommandFailed(str(error)) from error


def _trust(path: str, *, json: bool) -> None:
    from ultramon.system import trusted_files
    from ultramon.system.settings_files import parse_toml, read_project_bytes

    # The bytes that were looked at are trusted, not what is in the file a moment later.
    data = read_project_bytes(path)
    try:
        tables = parse_toml(data)
    except ValueError as error:
        raise CommandFailed(f"{path} is no TOML: {error}") from error
    trusted_files.trust(path, data)
    names = [
        f"{table}.{name}"
        for table, values in tables.items()
        for name in (values if isinstance(values, dict) else ())
    ]
    print_result(
        {"path": path, "sets": names},
        f"{path} is trusted until it is changed",
        f"it sets {plural(len(names), 'value')}  {', '.join(names)}".rstrip(),
        as_json=json,
    )


def _print_list(*, json: bool) -> None:
    from ultramon.system import trusted_files
    from ultramon.system.settings_files import read_project_bytes

    rows = []
    for path, known in trusted_files.trusted_files().items():
        try:
            verdict = trusted_files.trust_of(path, read_project_bytes(path))
        except (StateError, OSError):
            verdict = "missing"
        rows.append({"path": path, "now": verdict, **known})
    lines = [
        f"{one['now']:<8} {one['path']}  {one['sha256'][:_HASH_CHARS]}  since {one['trustedAt']}"
        for one in rows
    ]
    print_result({"files": rows}, *(lines or ["no file is trusted"]), as_json=json)
