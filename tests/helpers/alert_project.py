"""A project that keeps readings of its sessions, and ways to ask for an alert in it."""

import io
import json

from ultramon import AlertConfig, check_and_alert_context
from ultramon.backends.local.state_files import StateDirectory
from ultramon.system.timestamps import format_time
from ultramon.testing import make_record

SESSION = "session-1"


class Project:
    """A directory as a foreign tool fills it, read by a clock that the test moves.

    Args:
        path: The project directory; made.
        clock: Gives the times of readings; None = the test names them.
        session: The current session.
    """

    def __init__(self, path, clock=None, session=SESSION):
        self.path = path
        self.clock = clock
        (path / "context-states").mkdir(parents=True)
        self.choose(session)

    def choose(self, session):
        """Make a session the current one."""
        (self.path / ".current-session").write_text(f"{session}\n")

    def file(self, session=SESSION):
        """Where the reading of a session lies."""
        return self.path / "context-states" / f"context-state-{session}.json"

    def write(self, percentage, session=SESSION, at=None, **members):
        """Write the reading of a session, as of now unless said otherwise."""
        at = self.clock.now() if at is None else at
        self.file(session).write_text(json.dumps(reading(percentage, at, **members)))

    def remembered(self, session=SESSION):
        """The status that was alerted last; None when none was."""
        path = self.path / f".context-last-alert-{session}"
        return path.read_text().strip() if path.exists() else None

    def alert(self, config=None, **arguments):
        """Ask for an alert; return the outcome and what was written."""
        stream = io.StringIO()
        outcome = check_and_alert_context(
            directory=str(self.path),
            stream=stream,
            config=AlertConfig(**(config or {})),
            clock=self.clock,
            **arguments,
        )
        return outcome, stream.getvalue()


def reading(percentage, at, limit=200_000, **members):
    """A reading as a status line writes it; at is epoch seconds."""
    return {
        "timestamp": format_time(at),
        "contextWindow": {
            "percentage": percentage,
            "currentTokens": round(percentage * limit / 100),
            "maxTokens": limit,
        },
        "status": "ok",
        **members,
    }


def store_agent(directory, agent_id="scout-1", ratio=0.0, at=0.0, **fields):
    """Store the state of an agent whose window holds 200,000 tokens."""
    states = StateDirectory(str(directory))
    states.prepare()
    values = {"usage_ratio": ratio, "estimated_tokens": round(ratio * 200_000), **fields}
    record = make_record(agent_id, at=at, **values)
    states.replace(record, durable=False)
    return record
