"""What depends on processes works as well where the system has no ``/proc``.

The tests of each such part run in a mount namespace with an empty ``/proc``, and every program that
they start does: hooks, residents, orchestrators, workers.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from helpers import ROOT
from helpers.process_ways import system_without_proc

RESIDENT = "tests/hosts/resident/test_resident.py"
FAULTS = "tests/hosts/resident/test_resident_faults.py"
LATE = "tests/hosts/test_late_starts.py"
LEASES = "tests/backends/test_lease_holder.py"
LIVENESS = "tests/state/test_liveness.py"
HOLDERS = "tests/fleet/supervise/test_supervise_holders.py"
CHILDREN = "tests/fleet/test_fleet_processes.py"
PARTS = {
    "libproc": [
        RESIDENT,
        FAULTS,
        LATE,
        LEASES,
        LIVENESS,
        HOLDERS,
        CHILDREN,
        "tests/fleet/supervise/test_supervise_groups.py",
        "tests/cli/test_cli_chaos.py",
        "tests/system/test_process_search.py",
    ],
    "ps": [RESIDENT, LEASES, LIVENESS, CHILDREN],
}
LOOK_INTO_PROC = [
    f"{RESIDENT}::test_its_environment_is_not_that_of_one_session",
    f"{RESIDENT}::test_the_client_does_not_wait_for_it",
    f"{FAULTS}::test_one_that_is_stopped_within_a_lock_is_killed",
    f"{FAULTS}::test_a_disk_that_takes_nothing_does_not_silence_it",  # umount does
    f"{LEASES}::test_without_its_own_proc_a_process_proves_nothing",
    f"{LIVENESS}::test_a_zombie_is_gone",
    f"{HOLDERS}::test_a_connection_that_is_cut_is_no_end_of_an_agent_elsewhere",
    f"{CHILDREN}::test_a_kill_for_want_of_memory_is_told",
]
"""Tests that read ``/proc`` themselves, and so say nothing there."""
LOST = {
    "libproc": [],
    "ps": [
        # A look needs a pipe and a process, so without descriptors it says less.
        f"{LIVENESS}::test_out_of_descriptors_nobody_is_lost",
        # A ps that first makes a namespace is slow: not each call is taken within 250 ms.
        f"{RESIDENT}::test_the_first_session_starts_it_and_warnings_are_the_same",
    ],
}
MOST_SECONDS = 900


@pytest.mark.exhaustive
@pytest.mark.timeout(MOST_SECONDS)
@pytest.mark.parametrize("way", PARTS)
def test_the_parts_that_need_processes_work_without_proc(way, tmp_path):
    """Fewer than a hundred tests that passed would be no proof."""
    words, environ = system_without_proc(way, tmp_path)
    left_out = [word for name in LOOK_INTO_PROC + LOST[way] for word in ("--deselect", name)]
    options = ("-q", "-rs", "-n", "0", "-p", "no:cacheprovider", "--tb=short")
    done = subprocess.run(
        [*words, sys.executable, "-m", "pytest", *options, *PARTS[way], *left_out],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 100, done.stdout[-2_000:]
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("this system has no /proc" in line for line in skips), skips
