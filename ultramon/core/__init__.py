"""What a hook may import: standard library only, no module that costs milliseconds to load."""
