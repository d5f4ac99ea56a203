"""Hosts of one's own: network namespaces, each with one cable to this one, which can be pulled."""

from __future__ import annotations

import os
import subprocess

from helpers import requirements


class Host:
    """A host with a network and a name of its own.

    Args:
        number: 1 to 250; no two hosts of this process have the same.
    """

    def __init__(self, number: int) -> None:
        requirements.require_root()
        self._ip = requirements.require_tool("ip")
        self._unshare = requirements.require_tool("unshare")
        mark = os.getpid() % 100_000
        self.name = f"um{mark}h{number}"
        self._cable = f"um{mark}c{number}"
        network = f"10.{200 + mark % 50}.{number}"
        self.outside = f"{network}.1"
        """The address under which this host sees the one that the test runs on."""
        done = self._run("netns", "add", self.name, check=False)
        if done.returncode:
            requirements.missing(f"no network namespaces here: {done.stderr.strip()}")
        inner = f"{self._cable}i"
        self._run("link", "add", self._cable, "type", "veth", "peer", "name", inner)
        self._run("link", "set", inner, "netns", self.name)
        self._run("-n", self.name, "addr", "add", f"{network}.2/30", "dev", inner)
        self._run("-n", self.name, "link", "set", "lo", "up")
        self._run("-n", self.name, "link", "set", inner, "up")
        self._inner = inner
        self.connect()

    def _run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._ip, *arguments], capture_output=True, text=True, check=check, stdin=None
        )

    def command(self) -> list[str]:
        """Return the start of a command line that runs the rest on this host."""
        return [self._ip, "netns", "exec", self.name, self._unshare, "--uts"]

    def pull(self) -> None:
        """Pull the cable; this host can see that."""
        self._run("link", "set", self._cable, "down")

    def blackhole(self) -> None:
        """Let nothing be answered any more that this host sends, without an error to it."""
        self._run("addr", "del", f"{self.outside}/30", "dev", self._cable)

    def connect(self) -> None:
        """Undo `pull` and `blackhole`."""
        self._run("addr", "replace", f"{self.outside}/30", "dev", self._cable)
        self._run("link", "set", self._cable, "up")

    def remove(self) -> None:
        self._run("link", "del", self._cable, check=False)
        self._run("netns", "del", self.name, check=False)
