"""What a hook of Claude Code does; standard library only."""
