"""What is stored about one agent: record, models, events, plan, liveness."""
