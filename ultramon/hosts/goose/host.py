"""The host, of which transcripts alone are known."""

from ultramon.hosts.port import Host

GOOSE = Host("goose", "ultramon.hosts.goose", has_hooks=False)
