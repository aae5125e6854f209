"""`python -m bench`: run every benchmark in this folder in turn, each in its own process."""

import pkgutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Return 1 if a benchmark failed or missed its target, else 0."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    failed = []
    for name in names:
        if name.startswith("_"):
            continue
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode != 0:
            failed.append(name)
        print(flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
