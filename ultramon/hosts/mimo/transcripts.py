"""The sessions of MiMo Code: those of opencode, in a database of its own.

It keeps a subagent's messages in the session that launched it, begins windows anew from its notes,
and copies sessions of other hosts into its database, which are left out.
"""

from ultramon.hosts.opencode.configuration import Store
from ultramon.hosts.opencode.transcripts import OpencodeTranscripts

TRANSCRIPTS = OpencodeTranscripts(Store("mimo", "mimocode", "MIMOCODE_DB", "MIMOCODE_HOME"))
