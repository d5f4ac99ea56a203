"""The host, of which transcripts alone are known."""

from ultramon.hosts.port import Host

KILO = Host("kilo", "ultramon.hosts.kilo", has_hooks=False)
