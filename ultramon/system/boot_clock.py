"""How far the wall clock is ahead of the clock of this boot, which is never set."""

from __future__ import annotations

import os
import time
from collections import namedtuple

from ultramon.system import processes
from ultramon.system.processes import boot_seconds, this_machine


class BootReading(namedtuple("BootReading", "boot_id offset_seconds")):
    """What a machine's clocks show at one moment.

    A step of the wall clock changes the offset, the passing of time and a suspend do not.
    """

    __slots__ = ()

    boot_id: str
    """Boot and time namespace; empty where the system does not report the boot."""
    offset_seconds: float
    """Wall time less the seconds since the boot."""


def read_boot() -> BootReading:
    """Return what the clocks of this machine show."""
    boot_id = this_machine().boot_id.partition(":")[0]
    if boot_id:
        try:  # a container may count the seconds since the boot from another start
            boot_id += os.readlink(f"{processes.PROC}/self/ns/time")[4:]
        except OSError:
            pass
    return BootReading(boot_id, time.time() - boot_seconds())
