"""A read-only web page over the store: its own process, with walls of its own."""
