"""The transcripts that the hosts keep for this user."""

from __future__ import annotations

import os
from string import ascii_letters, digits
from typing import TYPE_CHECKING

from ultramon.hosts.registry import find_hosts
from ultramon.recordings.recordings import files_of, find_recordings
from ultramon.recordings.stored import Stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ultramon.recordings.index import Summarized

_LEAST_ID_CHARS = 4
_NEAR_FOLDERS = 3
"""Above a transcript, among which that of its session is."""
_ID_CHARS = frozenset(f"{ascii_letters}{digits}-_.")


def client_files(
    environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
) -> Iterator[str]:
    """Yield the transcripts of every host.

    Args:
        environ: Variables that move a host's directory.
        on_error: Called for each folder that is there and cannot be listed.
    """
    for host in find_hosts().usable:
        yield from host.transcripts.transcript_files(environ, on_error)


def find_by_id(name: str, environ: Mapping[str, str]) -> list[str]:
    """Find the transcripts whose file names hold an id that begins with `name`.

    Args:
        name: At least four characters of the id of a session or subagent.
        environ: As for `client_files`.
    """
    if len(name) < _LEAST_ID_CHARS or not set(name) <= _ID_CHARS:
        return []
    paths = list(client_files(environ))
    # Codex puts a date before the id, so it may stand behind a hyphen.
    found = [path for path in paths if f"-{name}" in f"-{os.path.basename(path)}"]
    # The id of a subagent may begin with all of its session's.
    found = [path for path in found if os.path.basename(path) == name] or found
    # Gemini names a session's file by the beginning of its id, and subagents' folder by all of it.
    found = found or [path for path in paths if _is_cut(path, name)]
    return found or _in_folders(paths, name)


def _in_folders(paths: list[str], name: str) -> list[str]:
    """Return the transcripts of a host that names the folder of a session, and all files alike."""
    wanted = f"{os.sep}{name}"
    found = [path for path in paths if wanted in _near_folders(path)]
    ids = {path: one.id for one in find_recordings(found).recordings for path in one.paths}
    found = [path for path in found if ids.get(path, "").startswith(name)]
    # A session's own comes with its subagents.
    return [path for path in found if "." not in ids[path]] or found


def _near_folders(path: str) -> str:
    return os.sep.join(["", *path.split(os.sep)[-_NEAR_FOLDERS - 1 : -1]])


def _is_cut(path: str, name: str) -> bool:
    """Return whether a file has the beginning of a session's id in its name, and is its own."""
    end = os.path.splitext(os.path.basename(path))[0].rpartition("-")[2]
    if len(end) < _LEAST_ID_CHARS or not name.startswith(end):
        return False
    recordings = find_recordings([path]).recordings
    return any(one.id.startswith(name) and path in one.paths for one in recordings)


def split_by_age(paths: Iterable[str], since: float) -> tuple[list[str], list[str]]:
    """Split files into those that a report since a time needs, and the others.

    A session that was still at work later needs its older files too: its first subagents, or its
    own file where only a subagent still worked. What belongs to a session lies in a folder of its
    file's name, or where its host says.

    Args:
        paths: Files that may be gone.
        since: Epoch seconds.
    """
    recent: list[str] = []
    older: list[str] = []
    stamps = Stamps()
    for path in paths:
        (recent if _changed_at(path, stamps) >= since else older).append(path)
    if not older:
        return recent, []
    sessions = {os.path.splitext(path)[0] for path in recent}
    folders = {folder for path in recent for folder in _folders(path)}
    subagents = {file for path in recent for file in files_of(path)}
    needed = [
        path
        for path in older
        if path in subagents
        or os.path.splitext(path)[0] in folders
        or not sessions.isdisjoint(_folders(path))
    ]
    skipped = set(older).difference(needed)
    return recent + needed, sorted(skipped)


def sources_of(found: Iterable[Summarized], others: Iterable[str]) -> list[str]:
    """Return those of other files that transcripts say to be copied from, by their names.

    Args:
        found: The transcripts.
        others: Files that are not read, as those that are too old for a report.
    """
    wanted = {one.summary.copied_from for one in found} - {None}
    return [path for path in others if any(f"{name}." in path for name in wanted)]


def _changed_at(path: str, stamps: Stamps) -> float:
    try:
        stamp = stamps.of(path, follow_links=True)
        return float("inf") if stamp is None else stamp[2] / 1e9
    except (OSError, ValueError):
        return float("inf")  # counts as recent: reading it says what is wrong


def _folders(path: str) -> Iterator[str]:
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder
