"""What can be wrong with an installation in Gemini. Changes nothing; never on a hook's path."""

from __future__ import annotations

from collections.abc import Iterator

from ultramon.hosts.doctor import DoctorContext, problem
from ultramon.hosts.gemini.setup import HOOK_NAME, hooks
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.port import Host
from ultramon.hosts.user_hooks_doctor import examine_user_hooks
from ultramon.system.findings import Finding

_CURE = "look at `/hooks panel` in `gemini`: whether hooks are switched off there"


def examine(host: Host, context: DoctorContext) -> Iterator[Finding]:
    """Answer the questions about the hooks and the sessions; none where nothing is installed."""
    return examine_user_hooks(context, host, hooks, _check_off, _CURE)


def _check_off(settings: HookSettings) -> Iterator[Finding]:
    """Ask whether the user has switched hooks off, all of them or ultramon's."""
    disabled = settings.get("hooksConfig", "disabled")
    if settings.get("hooksConfig", "enabled") is False:
        cure = "set hooksConfig.enabled to true, or delete it"
        yield problem("gemini hooks", f"{settings.path}: hooks are switched off", cure)
    elif isinstance(disabled, list) and HOOK_NAME in disabled:
        cure = f"take {HOOK_NAME} out of hooksConfig.disabled"
        yield problem("gemini hooks", f"{settings.path}: ultramon's hooks are switched off", cure)
