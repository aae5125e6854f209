"""`python -m service serve | migrate | doctor | backup | restore`."""

import sys

from service.main import main

if __name__ == "__main__":
    sys.exit(main())
