"""The routes of the HTTP API, a file per subject."""
