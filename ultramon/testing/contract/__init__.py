"""The contract of backends as test classes to inherit from."""
