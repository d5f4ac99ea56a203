"""What the options of a relay may be, and are where nothing is said; imports nothing."""

CLAUDE, CODEX, GEMINI, COMMAND = "claude", "codex", "gemini", "command"
COPILOT, OPENCODE, QWEN = "copilot", "opencode", "qwen"
HOSTS = (CLAUDE, CODEX, COPILOT, GEMINI, OPENCODE, QWEN)
WARNING, CRITICAL = "warning", "critical"
"""The rungs at which a context may hand over, by their usual names."""
DEFAULT_MAX_CONTEXTS = 20
DEFAULT_GRACE_MINUTES = 3
DEFAULT_IDLE_REQUESTS = 100
DEFAULT_VERIFY_MINUTES = 10
DEFAULT_SETUP_MINUTES = 30
