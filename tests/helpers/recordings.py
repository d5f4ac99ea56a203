"""Recordings for the tests that replay them."""

from helpers.transcript_lines import line
from ultramon import ContextConfig
from ultramon.recordings.recordings import find_recordings
from ultramon.recordings.replay import replay


def only(path):
    """The one recording under a path."""
    found = find_recordings([str(path)])
    assert len(found.recordings) == 1, found
    return found.recordings[0]


def timeline(path, **config):
    """The timeline of the one recording under a path."""
    return replay(only(path), ContextConfig(**config))


def written(tmp_path, name, *lines):
    """A file of transcript lines, or of texts."""
    path = tmp_path / name
    path.write_bytes(b"".join(one if isinstance(one, bytes) else line(one) for one in lines))
    return path
