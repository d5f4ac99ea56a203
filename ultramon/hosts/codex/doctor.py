"""What can be wrong with an installation in Codex. Changes nothing; never on a hook's path."""

from __future__ import annotations

from collections.abc import Iterator

from ultramon.hosts.codex.setup import NOTIFY, hooks
from ultramon.hosts.doctor import DoctorContext
from ultramon.hosts.port import Host
from ultramon.hosts.user_hooks_doctor import examine_user_hooks
from ultramon.system.findings import Finding

_CURE = (
    "start `codex` and trust the hooks that it asks about; one that is not trusted is left out"
    f" without a word; {NOTIFY} in config.toml needs no trust"
)


def examine(host: Host, context: DoctorContext) -> Iterator[Finding]:
    """Answer the questions about the hooks and the sessions; none where nothing is installed."""
    return examine_user_hooks(context, host, hooks, lambda _: (), _CURE)
