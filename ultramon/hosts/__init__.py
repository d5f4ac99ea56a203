"""One room per host: a program that runs agents, calls hooks and writes transcripts."""
