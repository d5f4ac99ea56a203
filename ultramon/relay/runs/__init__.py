"""One call of a relay: contexts that are started, judged and paused, and what became of them."""
