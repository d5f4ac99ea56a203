"""The MCP server: an agent asks about its own context window and keeps its plan through tools.

The command line finds the calling agent and passes it in.
"""
