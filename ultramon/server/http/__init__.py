"""What every request passes: connections, filter, authentication, answers."""
