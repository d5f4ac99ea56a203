"""Names of lease holders that identify a process, so that its death frees the lease."""

from __future__ import annotations

import os

from ultramon.system.ids import random_hex
from ultramon.system.processes import process_started_at, sees_processes, this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.system.processes import MachineIdentity

_UNKNOWN = "unknown"


def name_holder(machine: MachineIdentity | None = None) -> str:
    """Return a new name for something in this process; no two are the same.

    Args:
        machine: Where it runs; None = here.
    """
    pid, machine = os.getpid(), machine or this_machine()
    started_at = (sees_processes() and process_started_at(pid)) or _UNKNOWN
    return f"{random_hex(8)} {pid} {started_at} {machine.boot_id} {machine.hostname}"


def machine_of_holder(holder: str) -> tuple[str, str]:
    """Return hostname and boot id of a holder, both empty for a name not made by `name_holder`."""
    parts = holder.split(" ", 4)
    return (parts[4], parts[3]) if len(parts) == 5 else ("", "")


def is_gone(holder: str, machine: MachineIdentity | None = None) -> bool:
    """Return whether the process of a holder has provably ended.

    Proof is that no process of its pid and start runs in its boot and process namespace. Nothing
    is known, and the answer is False, on another machine, after a reboot, where the system does not
    tell boot, namespace and start, and for a name that `name_holder` did not make.

    Args:
        holder: The name.
        machine: That of the caller; None = this one.
    """
    try:
        _, pid, named_start, boot_id, hostname = holder.split(" ", 4)
        pid_number = int(pid)
    except ValueError:
        return False
    machine = machine or this_machine()
    boot, _, namespace = boot_id.partition(":")
    if not (boot and namespace and (boot_id, hostname) == (machine.boot_id, machine.hostname)):
        return False
    if named_start == _UNKNOWN or not sees_processes():
        return False
    return process_started_at(pid_number) not in (named_start, _UNKNOWN)
