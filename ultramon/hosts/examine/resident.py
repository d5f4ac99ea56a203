"""Whether a resident answers, and why none does where the installation asks for none."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ultramon.hosts.doctor_context import DoctorContext, ok, warning
from ultramon.hosts.install.installation import can_have_resident
from ultramon.system.environment import is_on
from ultramon.system.findings import Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.installed_choices import InstalledChoices
    from ultramon.hosts.resident.place import Place

_MEGABYTE = 1_000_000


def check_resident(
    context: DoctorContext, stored: InstalledChoices | None, name: str, install: str
) -> Iterator[Finding]:
    """Whether one runs, can be asked from here, and is this ultramon's.

    Nothing of it is a problem: without an answer each hook does everything itself.

    Args:
        context: What the questions are about.
        stored: The choices of a host; None = they are missing or cannot be read.
        name: What the question is called.
        install: The command that installs into the host anew.
    """
    if stored is None:
        return
    if not stored.resident:
        why = _why_none(stored, install)
        yield ok(name, f"none, each hook does everything itself: {why}")
        return
    # Not on Windows, where nothing of this can be loaded, nor chosen.
    from ultramon.hosts.resident.forwarder import OFF_VARIABLE
    from ultramon.hosts.resident.place import Place

    if is_on(OFF_VARIABLE):
        message = f"{OFF_VARIABLE} is set: hooks started from here ask none"
        yield warning(name, message, f"unset {OFF_VARIABLE}")
    place = Place(context.state_directory)
    running, folder = place.running(), os.path.dirname(place.socket)
    if running is None:
        if os.environ.get("XDG_RUNTIME_DIR") and not os.access(folder, os.W_OK | os.X_OK):
            message = f"its socket cannot be made in {folder}: each hook does everything itself"
            cure = "set XDG_RUNTIME_DIR to a directory of yours, or unset it"
            yield warning(name, message, cure)
        else:
            yield ok(name, "none runs; the next session starts one")
        return
    if running.get("socket") != place.socket:
        message = f"listens at {running.get('socket')}, hooks started from here ask {place.socket}"
        yield warning(name, message, "start the host with the XDG_RUNTIME_DIR of the others")
        return
    yield _check_answer(place, running["pid"], name)


def _why_none(stored: InstalledChoices, install: str) -> str:
    """Return why the installation asks no resident."""
    if stored.resident_choice is False:
        return "--no-resident was chosen"
    if not can_have_resident():
        return "it needs Linux or macOS"
    return f"an older ultramon installed; {install} changes that"


def _check_answer(place: Place, pid: int, name: str) -> Finding:
    if place.is_paused:
        message = f"process {pid} did not answer in time, and is not asked for a minute"
        return warning(name, message, f"if it happens again: kill {pid}; hooks work without it")
    facts = place.ask()
    if facts is None:
        return warning(name, f"process {pid} does not answer", f"kill {pid}; hooks work without")
    if not facts.get("isCurrent"):
        message = f"process {pid} runs other code than this ultramon"
        return warning(name, message, f"kill {pid}; the next hook starts one that is up to date")
    return ok(
        name,
        f"process {pid} since {facts['since']}: {facts['sessions']} sessions,"
        f" {facts['calls']:,} calls, {facts['atOnce']:,} of them answered at once,"
        f" {facts['refused']:,} refused, {facts['residentBytes'] / _MEGABYTE:.0f} MB",
    )
