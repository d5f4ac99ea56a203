"""The local backend: state files and one SQLite journal in a directory."""
