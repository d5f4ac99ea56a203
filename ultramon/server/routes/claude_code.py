"""The route that hooks of Claude Code were sent to by an earlier ultramon: what to do instead.

For one version; then it is as unknown as any other path.
"""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from ultramon.hosts.claude_code.install.http_hooks import PATH
from ultramon.server.http.authorization import HookCaller
from ultramon.server.http.responses import problems

router = APIRouter(tags=["hooks"])

_GONE = (
    "hooks are not taken over HTTP any more: run `ultramon install claude-code` (with --local or"
    " --project where it was installed so), which makes commands of them, and start the session"
    " anew"
)


@router.post(
    PATH,
    response_model=None,
    status_code=410,
    responses={410: {"description": "`ultramon install` turns such hooks into commands."},
               **problems()},
    deprecated=True,
)  # fmt: skip
def claude_code(_caller: HookCaller) -> None:
    """Refuse a hook call of the client, and say what makes a command of the hook."""
    raise HTTPException(410, _GONE)
