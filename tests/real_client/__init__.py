"""End-to-end tests: the real Claude Code client against a stand-in for its API on loopback."""
