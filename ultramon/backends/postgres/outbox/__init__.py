"""What waits on this host while the database is away."""
