"""Plan, steps and handoff of an agent that works in a client, changed in its stored state.

The verbs of the commands and tools that such an agent calls: it has no monitor, its hooks keep the
state.
"""
