"""`python -m trainyard`: the command line, where `trainyard` is not on the path."""

from trainyard.cli import main

if __name__ == "__main__":
    main()
