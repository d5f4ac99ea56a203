"""The orchestrator's side: what happens to the agents of a run, delivered to handlers."""
