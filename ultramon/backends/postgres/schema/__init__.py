"""Tables and columns of the PostgreSQL store."""
