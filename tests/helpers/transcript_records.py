"""What readers find in transcripts, for the tests of all hosts."""

from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import Report


def of(kind, records):
    """The records of one class."""
    return [record for record in records if isinstance(record, kind)]


def totals(records):
    """The tokens of each report, its reply included."""
    return [one.tokens + one.output_tokens for one in of(Report, records)]


def stored_records(transcripts, path, name):
    """The records of a session in a database."""
    with transcripts.find_stored(f"{path}/{name}").open() as stream:
        return list(transcripts.read_transcript(bounded_lines(stream)))
