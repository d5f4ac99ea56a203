"""The host, of which transcripts alone are known."""

from ultramon.hosts.port import Host

MIMO = Host("mimo", "ultramon.hosts.mimo", has_hooks=False)
