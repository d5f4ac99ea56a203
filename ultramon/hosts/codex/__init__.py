"""OpenAI Codex CLI: its hook payloads and the rollout files it writes, one per thread."""
