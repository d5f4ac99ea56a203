"""opencode: the events of its plugin, and the database in which it keeps its sessions."""
