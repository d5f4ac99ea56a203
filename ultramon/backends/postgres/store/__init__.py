"""Reading and writing the PostgreSQL store."""
