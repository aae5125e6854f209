"""A program for the Python of an environment: prints which packages it has, as JSON on its last line.

It is run as `python -c <this file> <names of packages>`, without Trainyard, by a Python of any version from 3.6 on. No
package is imported: torch takes seconds.
"""

import json
import re
import sys


def version_of(name: str) -> object:
    """Return the version; an empty text if it is unknown; None if the package is missing."""
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None:
        return None
    try:
        from importlib.metadata import version

        return version(name)
    except Exception:
        return _version_in_file(spec.origin or "")


def _version_in_file(init: str) -> str:
    """Return the version in the package's module `version`, which torch has even without metadata."""
    try:
        with open(re.sub(r"__init__\.py$", "version.py", init)) as file:
            match = re.search(r"""^__version__ = ['"]([^'"]+)""", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else ""


if __name__ == "__main__":
    packages = {name: version_of(name) for name in sys.argv[1:]}
    sys.stdout.write("\n" + json.dumps({"python": list(sys.version_info[:3]), "packages": packages}) + "\n")
