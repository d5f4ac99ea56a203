"""The status line of any host that has one: what it takes, and the one line that it shows."""
