"""What ``ultramon doctor`` asks about hosts."""
