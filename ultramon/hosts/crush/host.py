"""The host, of which transcripts alone are known."""

from ultramon.hosts.port import Host

CRUSH = Host("crush", "ultramon.hosts.crush", has_hooks=False)
