"""The dialect of Copilot CLI. Standard library only: every hook call loads it."""

from __future__ import annotations

from ultramon.hosts.port import Dialect

DIALECT = Dialect()
