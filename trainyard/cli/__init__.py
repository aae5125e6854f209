"""The command line. `main` loads the rest, so that naming this package costs nothing."""


def main() -> None:
    """Entry point of `trainyard`."""
    from trainyard.cli.app import app

    app()
