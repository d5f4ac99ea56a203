"""What is kept on this machine during an outage of the database, and the thread that stores it."""
