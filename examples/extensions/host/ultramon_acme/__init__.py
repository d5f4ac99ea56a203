"""ultramon for Acme, a host that exists in this example only.

It shows the agent what a hook answers under ``say``, and writes one JSON line per reply.
"""

from ultramon.hosts.port import Host

ACME = Host("acme", __name__)
