"""Setting a PostgreSQL store up, and examining it."""
