"""What a monitor would have said over a recording, and when. Prints nothing.

`find_recordings` says what is under a path, `replay` makes a `Timeline` of one recording.
"""

from ultramon.cli.replay.player import replay
from ultramon.cli.replay.recordings import Found, Recording, Skipped, find_recordings
from ultramon.cli.replay.timeline import Compaction, Crossing, Overflow, RungLine, Timeline

__all__ = [
    "Compaction",
    "Crossing",
    "Found",
    "Overflow",
    "Recording",
    "RungLine",
    "Skipped",
    "Timeline",
    "find_recordings",
    "replay",
]
