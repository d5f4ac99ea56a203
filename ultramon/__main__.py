"""`python -m ultramon` is the command line."""

from ultramon.cli import main

if __name__ == "__main__":
    main()
