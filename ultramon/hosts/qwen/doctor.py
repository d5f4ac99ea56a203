"""What can be wrong with an installation in Qwen Code. Changes nothing; never on a hook's path."""

from __future__ import annotations

from collections.abc import Iterator

from ultramon.hosts.doctor import DoctorContext, problem
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.port import Host
from ultramon.hosts.qwen.setup import OFF, is_off, settings
from ultramon.hosts.user_hooks_doctor import examine_user_hooks
from ultramon.system.findings import Finding

_CURE = "start `qwen`, and see its list of hooks with /hooks"


def examine(host: Host, context: DoctorContext) -> Iterator[Finding]:
    """Answer the questions about the hooks and the sessions; none where nothing is installed."""
    return examine_user_hooks(context, host, settings, _check_off, _CURE)


def _check_off(settings: HookSettings) -> Iterator[Finding]:
    """Ask whether the user has switched all hooks off."""
    if is_off(settings):
        yield problem("qwen hooks", f"{settings.path} sets {OFF}: no hook runs", "take that out")
