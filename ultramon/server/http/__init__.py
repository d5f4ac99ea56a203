"""The layers that every request passes: connections, filter, authentication, answers."""
