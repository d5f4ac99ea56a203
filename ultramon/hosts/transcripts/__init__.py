"""What every host's transcripts have in common: lines, records, the end of a file."""
