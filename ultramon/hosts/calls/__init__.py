"""What every hook call of a host runs."""
