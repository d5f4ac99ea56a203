"""ultramon for Acme, a host that exists in this example only.

Acme calls a hook with its own words, shows the agent what the hook answers under ``say``, and
writes one JSON line per reply.
"""

from ultramon.hosts.port import Host

ACME = Host("acme", __name__)
