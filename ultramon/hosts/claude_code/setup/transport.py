"""How tool calls reach ultramon: a command for each, or a request to a running server.

Planning only, nothing is written here. Never on a hook's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError
from ultramon.hosts.claude_code.setup.http_hooks import SECRET_VARIABLE, Link, check_url
from ultramon.hosts.claude_code.setup.settings import PROJECT
from ultramon.hosts.installation import HTTP
from ultramon.hosts.installed_choices import check_choice
from ultramon.hosts.setup import Server, SetupRequest

if TYPE_CHECKING:
    from ultramon.hosts.claude_code.setup.install import Installation

COMMAND = "command"
VIAS = (COMMAND, HTTP)
SETTINGS, ENVIRONMENT = "settings", "environment"
SECRET_PLACES = (SETTINGS, ENVIRONMENT)


def choose_link(plan: Installation, layer: str, request: SetupRequest) -> Link | None:
    """Work out where requests go, and note it in the record of the installation.

    Args:
        plan: Gets notes for the person, and the mode of the file. A choice that was not made now
            is taken from its record.
        layer: Name of the layer.
        request: Its choices, and the server of the state directory.

    Returns:
        None when all events are commands.

    Raises:
        ConfigurationError: A choice is not allowed, or no address is known.
    """
    record, server = plan.record, request.server
    via, url, secret_in = request.choices.via, request.choices.url, request.choices.secret_in
    if check_choice("via", via or record.get("via", COMMAND), VIAS, "argument") == COMMAND:
        for name, value in (("url", url), ("secret_in", secret_in)):
            if value is not None:
                raise ConfigurationError(name, value, "given with --via http only", "argument")
        for name in ("via", "url", "secretIn"):
            record.pop(name, None)
        plan.restore_mode(record)
        return None
    if plan.installed.resident_choice:
        allowed = f"{COMMAND} with --resident; --no-resident allows requests"
        raise ConfigurationError("via", HTTP, allowed, "argument")
    place = secret_in or record.get("secretIn", SETTINGS)
    check_choice("secret_in", place, SECRET_PLACES, "argument")
    if place == SETTINGS and layer == PROJECT:
        allowed = (
            "settings that are yours alone, --user or --local: the hook secret would be in a "
            "file that others read; or --secret-in environment"
        )
        raise ConfigurationError("via", HTTP, allowed, "argument")
    address = _address(record, server, url)
    record.update(via=HTTP, url=address, secretIn=place)
    if place == ENVIRONMENT:
        plan.restore_mode(record)
        plan.notes.append(
            f"the client must be started with {SECRET_VARIABLE} in its environment: the content "
            "of hook.secret in the state directory; whatever its tools run can read it there too"
        )
        return Link(address, None)
    plan.notes.append(
        f"the hook secret is in {plan.settings.path}, which from now on only you can read "
        "(mode 600); keep it out of repositories that others see"
    )
    settings = plan.settings
    if settings.original is not None and settings.mode & 0o077:
        record["mode"] = settings.mode
        settings.new_mode = settings.mode & ~0o077
    return Link(address, server.secret())


def _address(record: dict[str, Any], server: Server, url: str | None) -> str:
    if url is not None:
        return check_url(url)
    known = server.url or record.get("url")
    if not isinstance(known, str):
        allowed = (
            "possible while a server runs for this state directory (ultramon serve), or with its "
            "address: --url http://127.0.0.1:8420"
        )
        raise ConfigurationError("via", HTTP, allowed, "argument")
    return check_url(known, "server.json")
