"""Google's Gemini CLI: its hook payloads and the session files it writes."""
