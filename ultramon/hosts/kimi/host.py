"""The host, of which transcripts alone are known."""

from ultramon.hosts.port import Host

KIMI = Host("kimi", "ultramon.hosts.kimi", has_hooks=False)
