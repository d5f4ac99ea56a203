"""The rows of a proof: which program proves what, and what each must have done at least.

The least is far below what was measured: it finds a run that did next to nothing, not a slow
machine.
"""

from __future__ import annotations

from typing import NamedTuple

_SUITES = ("-m", "benchmarks.proof.suites", "--counts", "{counts}")
_SOAK = ("-m", "benchmarks.soak", "--counts", "{counts}", "--minutes", "{minutes}")
_SOAK += ("--seed", "{seed}", "--items", "{items}", "--keep", "{kept}", "--on")


class Least(NamedTuple):
    """What must have succeeded, or have been met, at least."""

    always: int
    each_minute: float = 0.0

    def within(self, minutes: float) -> int:
        """Return the least of a row that had so much time."""
        return self.always + int(self.each_minute * minutes)


class Row(NamedTuple):
    """One row of the table.

    A command is the arguments of this Python; ``{counts}`` is the file for what it found,
    ``{seconds}`` and ``{minutes}`` its time, ``{seed}`` its seed, ``{items}`` what a run of a soak
    of that length can do, ``{kept}`` a directory that is kept where the row is red.
    """

    name: str
    proves: str
    command: tuple[str, ...]
    operations: dict[str, Least]
    """Of each kind so many must have succeeded."""
    faults: dict[tuple[str, ...], Least] = {}  # noqa: RUF012 - of a tuple, and never changed
    """Of the kinds that contain one of these words so many must have been met; () = of any."""
    share: int = 0
    """Of the time that is left; 0 = it runs to its end, before all that have a share."""
    least_seconds: float = 10.0
    """Of a row with a share, however little time is left: less meets too few faults."""
    besides_seconds: float = 0.0
    """What it takes besides its share: to collect its tests, to settle at its end."""


ROWS = (
    Row(
        "earlier stores, files",
        "states, journals, logs and choices of every earlier version are read, kept and continued",
        (
            *_SUITES,
            "--",
            "tests/backends/local/test_journal_versions.py",
            "tests/backends/local/test_statefile.py",
            "tests/server/test_server_readings.py",
            "tests/relay/test_relay_result.py",
            "tests/hosts/test_hook_memory.py",
            "-k",
            "version or schema or released or earlier or unknown_fields",
        ),
        {"tests": Least(30)},
    ),
    Row(
        "earlier stores, PostgreSQL",
        "the dump of every earlier version is migrated with its rows",
        (
            *_SUITES,
            "--",
            "tests/backends/postgres/test_postgres_setup.py",
            "-k",
            "version or older or restored or migrat",
        ),
        {"tests": Least(6)},
    ),
    Row(
        "hosts",
        "every host passes the suite of all hosts, on recorded calls",
        (*_SUITES, "--", "tests/hosts/test_host_contract.py"),
        {"tests": Least(60)},
    ),
    Row(
        "fuzzers",
        "no input breaks a parser or a rule: transcripts, hooks, states, settings, journals",
        (*_SUITES, "--fuzz", "--seconds", "{seconds}", "--seed", "{seed}"),
        {"tests": Least(2, 2.0), "inputs": Least(50, 100.0)},
        share=3,
        besides_seconds=10.0,
    ),
    Row(
        "power cuts, files",
        "what was acknowledged is there after a cut; no state or journal is damaged",
        (
            "-m",
            "benchmarks.proof.power_cuts",
            "--counts",
            "{counts}",
            "--seconds",
            "{seconds}",
            "--seed",
            "{seed}",
        ),
        {"acknowledged writes": Least(2, 10.0)},
        faults={("power cuts",): Least(2, 2.0), ("no fsync",): Least(2, 2.0)},
        share=1,
    ),
    Row(
        "soak, hooks",
        "no crossing is missed and no state set back while the resident is killed and suspended",
        (
            "-m",
            "benchmarks.resident_soak",
            "--counts",
            "{counts}",
            "--minutes",
            "{minutes}",
            "--seed",
            "{seed}",
        ),
        {"calls": Least(8, 10.0), "crossings": Least(1, 1.0)},
        faults={("killed", "suspended"): Least(1, 1.0)},
        share=1,
    ),
    *(
        Row(
            f"soak, {name}",
            "no item or message is lost, none is false, none has two holders",
            (*_SOAK, on),
            {"items": Least(8, 2.0), "messages": Least(10, 10.0)},
            faults={("killed", "suspended"): Least(1, 2.0), **faults},
            share=3,
            least_seconds=30.0,
            besides_seconds=25.0,
        )
        for name, on, faults in (
            ("files", "files", {}),
            ("PostgreSQL", "postgres", {("database", "foreign"): Least(1)}),
            ("PostgreSQL, partitioned", "proxy", {("network", "connections", "answer"): Least(1)}),
        )
    ),
)
