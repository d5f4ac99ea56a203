"""The agent's side: `ContextMonitor` and what it stores."""
