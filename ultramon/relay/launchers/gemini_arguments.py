"""What Gemini CLI and Qwen Code, which was made from it, take on their command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.hosts.hook_program import RELAY_SESSION
from ultramon.relay.launchers.hooked_client import ELSEWHERE, OWN, UNSEEN, HookedClientLauncher

if TYPE_CHECKING:
    from collections.abc import Mapping

WAITS = "nobody would answer it"
REFUSED_BY_BOTH = {
    "-p": OWN,
    "--prompt": OWN,
    "-o": OWN,
    "--output-format": OWN,
    "--session-id": OWN,
    "-r": OWN,
    "--resume": OWN,
    "-i": WAITS,
    "--prompt-interactive": WAITS,
    "--acp": WAITS,
    "-s": UNSEEN,
    "--sandbox": UNSEEN,
    "--worktree": ELSEWHERE,
}
_UNASKED = ("-y", "--yolo", "--approval-mode=yolo")


class GeminiArgumentsLauncher(HookedClientLauncher):
    """Launcher of one of the two; its arguments are those of `HookedClientLauncher`.

    Attributes:
        own_permissions: What holds where no argument says otherwise.
        unanswered: What becomes of a tool that would ask a person.
    """

    own_permissions: str
    unanswered: str

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        own = self.given("--approval-mode")
        for argument in self._arguments:
            if argument in _UNASKED or own == "yolo":
                return f"permissions: nothing is asked, by your argument {argument}"
        whose = f"approval mode {own}" if own else self.own_permissions
        return f"permissions: {whose}; {self.unanswered}"

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of a headless session; see `HookedClientLauncher.arguments`."""
        return (
            *self._arguments,
            "--output-format", "stream-json",
            "--resume" if resumes else "--session-id", session_id,
            "--prompt", prompt,
        )  # fmt: skip

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return what has the hooks report this session, and none that its agent begins."""
        return {RELAY_SESSION: session_id}
