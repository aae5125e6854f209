"""`python -m bench`: run every program of this folder, one after the other, each in a process of its own."""

import pkgutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Returns the exit status: not 0 when a program failed or a number missed its mark."""
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
