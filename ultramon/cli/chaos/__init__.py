"""`ultramon chaos`: kills the workers of an orchestrator and counts what was lost."""
