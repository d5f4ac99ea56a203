"""Sets a PostgreSQL store up and examines it."""
