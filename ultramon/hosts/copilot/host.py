"""The host, whose parts lie beside this file. Standard library only: every hook call loads it."""

from ultramon.hosts.port import Host

COPILOT = Host("copilot", "ultramon.hosts.copilot")
