"""What agents have committed of items that no check has confirmed: the steps of what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.relay.item_names import ItemNames
from ultramon.relay.workspace import BRANCHES, MAX_SHOWN, QUICK_SECONDS
from ultramon.state.prompt_text import one_line
from ultramon.system.git_trees import BoundedGit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ultramon.relay.workspace import RelayWorkspace


def commits_in_work(
    place: RelayWorkspace, names: Iterable[str], items: Collection[str], *, is_merged: bool
) -> tuple[str, ...]:
    """Return short ids and subjects of the commits behind the last finished item, oldest first.

    Those that a worker of several begins with are. On a branch of one worker they begin behind a
    commit that names another item, and behind what was checked out when an item was verified last,
    but for commits that name an item of the context.

    Args:
        place: Where a context begins.
        names: Of the items of the run, as a task list spells them.
        items: Those of the context.
        is_merged: Whether each item is merged into a branch when it is done.

    Returns:
        At most 50, the last ones; none outside of git.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    refs = f"refs/{BRANCHES}/{place.run}"
    since = f"{refs}/worker-{place.worker}" if is_merged else place.base
    if not place.is_checkpointed or since is None:
        return ()
    git = BoundedGit(place.root, QUICK_SECONDS)
    log = git(
        "log", "--no-show-signature", "--first-parent", f"--max-count={MAX_SHOWN}", "-z",
        "--format=%H %h %s", f"{since}..HEAD",
    )  # fmt: skip
    finished: set[str] = set()
    if not is_merged:
        for line in git("for-each-ref", "--format=%(refname) %(parent)", f"{refs}/").splitlines():
            name, _, parent = line.partition(" ")
            if name.rpartition("/")[2].isdecimal():
                finished.add(parent)
    known = ItemNames(names)
    found: list[str] = []
    is_behind = False
    for entry in filter(None, log.split("\0")):
        commit, _, shown = entry.partition(" ")
        named = known.find(one_line(shown.partition(" ")[2]))
        # A check takes its time: the next item may have commits before the last one is verified.
        is_behind |= commit in finished
        if is_behind if named is None else named not in items:
            break
        found.append(shown)
    return tuple(reversed(found))
