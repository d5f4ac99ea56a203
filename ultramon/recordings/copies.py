"""Which replies of a transcript are copied from another one: what happened once counts once.

A fork, a branch, a resumed session and an agent that was spawned with its parent's conversation
begin with lines of another file, with its times or with new ones. A reply is known by the id that
the provider gave it. Where a host leaves ids out of a copy, as Codex does, the file says whose copy
it is, and equal counts up to the first own reply show how far it goes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ultramon.recordings.transcript_summary import TranscriptSummary


def copied_keys(summaries: Iterable[tuple[str, TranscriptSummary]]) -> dict[str, int]:
    """Return how many of the first keys of each transcript are copies, by path; 0 is left out.

    The first owner of a reply is the transcript it is not copied into: the one that another names
    as its source, else the one that began first.
    """
    by_host: defaultdict[str, list[tuple[str, TranscriptSummary]]] = defaultdict(list)
    for path, summary in summaries:
        by_host[summary.host].append((path, summary))
    found: dict[str, int] = {}
    for group in by_host.values():
        found.update(_copied_in(group))
    return found


def _copied_in(group: list[tuple[str, TranscriptSummary]]) -> Mapping[str, int]:
    threads = {_thread(one): one for _, one in group}
    families: defaultdict[str, list[TranscriptSummary]] = defaultdict(list)
    owners: dict[str, tuple[TranscriptSummary, int]] = {}
    found: dict[str, int] = {}
    # Sources come first: what is copied from them then finds its owner.
    for path, one in sorted(group, key=lambda named: _order(named[1], threads)):
        count = 0
        if one.copied_from is not None:
            root = _root(one, threads)
            relatives = list(families[root])
            if (source := threads.get(root)) is not None:
                relatives.append(source)
            count = max((_shared_by_counts(one.keys, other.keys) for other in relatives), default=0)
            families[root].append(one)
        # Ids are compared together with the counts: some programs number their replies from one.
        first = next((key for key in one.keys if _has_id(key)), "")
        owner = owners.get(first)
        if owner is not None and _thread(owner[0]) != _thread(one):
            before = one.keys.index(first)
            theirs = owner[0].keys[owner[1] :]
            count = max(count, before + _shared(one.keys[before:], theirs))
        for at, key in enumerate(one.keys):
            if _has_id(key):
                owners.setdefault(key, (one, at))
        if count:
            found[path] = count
    return found


def _thread(one: TranscriptSummary) -> str:
    return one.agent_id or one.session_id


def _order(one: TranscriptSummary, threads: Mapping[str, TranscriptSummary]) -> tuple[int, float]:
    """Sort sources before what is copied from them, then by their beginning."""
    depth, seen = 0, {_thread(one)}
    source = one.copied_from
    # Two files that name each other must not be followed for ever.
    while source is not None and source not in seen:
        seen.add(source)
        depth += 1
        source = threads[source].copied_from if source in threads else None
    return depth, one.began_at or one.started_at or 0.0


def _root(one: TranscriptSummary, threads: Mapping[str, TranscriptSummary]) -> str:
    """Return the thread that a chain of copies begins with, which may be gone."""
    seen = {_thread(one)}
    source = one.copied_from or ""
    while source in threads and source not in seen:
        seen.add(source)
        further = threads[source].copied_from
        if further is None:
            break
        source = further
    return source


def _has_id(key: str) -> bool:
    return "." in key and not key.startswith(".")


def _shared_by_counts(keys: Sequence[str], others: Sequence[str]) -> int:
    return _shared([one.rpartition(".")[2] for one in keys], [k.rpartition(".")[2] for k in others])


def _shared(keys: Sequence[str], others: Sequence[str]) -> int:
    return _first(one != other for one, other in zip(keys, others, strict=False))


def _first(differences: Iterable[bool]) -> int:
    """Return the place of the first True, or how many there are."""
    count = 0
    for is_other in differences:
        if is_other:
            break
        count += 1
    return count
