"""Where states are kept, a room per kind of store; `opening` chooses one."""
