"""`ultramon chaos`: kills the workers of an orchestrator and counts the work lost."""
