"""Long jobs of coding agents over several fresh contexts: workspace, prompts and launchers.

May import the fleet, hosts, the monitor and what lies below; only the command line imports it.
"""
