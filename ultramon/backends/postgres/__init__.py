"""A store for many machines: the same rules in a PostgreSQL database. `PostgresBackend` is it."""
