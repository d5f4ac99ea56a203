"""The sessions of Kilo: those of opencode, in a database of its own."""

from ultramon.hosts.opencode.configuration import Store
from ultramon.hosts.opencode.transcripts import OpencodeTranscripts

TRANSCRIPTS = OpencodeTranscripts(Store("kilo", "kilo", "KILO_DB"))
