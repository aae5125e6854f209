"""`python -m service serve | migrate | doctor | backup | restore`."""

import sys

from trainyard.process_start import speed_up_imports


def run() -> int:
    speed_up_imports()
    from service.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
