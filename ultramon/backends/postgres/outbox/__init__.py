"""What is kept on this host during an outage of the database, and the thread that stores it."""
