"""RelayBench: any orchestrator against agents that lie, die, loop, fill up, ignore and overwrite.

``python -m ultramon.testing.bench relay -- COMMAND…``; docs/relay-bench.md is the contract. The
orchestrators know nothing of ultramon, and the judge reads nothing that ultramon has stored.
"""
