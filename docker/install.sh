#!/bin/sh
# Builds /opt/trainyard, the environment of an image: `install.sh dependencies EXTRA,...`, then `install.sh package`.
# Pinned by constraints.txt; from /wheelhouse alone where that holds wheels. PIP_OPTIONS is for an index of your own.
set -eu

target=/opt/trainyard/bin/python
options="--quiet --disable-pip-version-check --no-cache-dir"
options="$options --cert /etc/ssl/certs/ca-certificates.crt ${PIP_OPTIONS:-}"
if ls /wheelhouse/*.whl >/dev/null 2>&1; then
    options="$options --no-index --find-links /wheelhouse"
fi

case "$1" in
dependencies)
    update-ca-certificates >/dev/null 2>&1
    python3 -m venv /build
    python3 -m venv --without-pip /opt/trainyard
    /build/bin/python - "$2" >requirements.txt <<'PYTHON'
import sys, tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = (project["optional-dependencies"][extra] for extra in sys.argv[1].split(","))
print("\n".join(sum(extras, project["dependencies"])))
PYTHON
    # shellcheck disable=SC2086 (several options in one word)
    /build/bin/pip install $options 'setuptools>=78.1.1'
    # shellcheck disable=SC2086
    /build/bin/pip --python $target install $options --constraint constraints.txt --requirement requirements.txt
    ;;
package)
    /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist .
    /build/bin/pip --python $target install --quiet --no-deps --no-index /dist/*.whl
    ;;
esac
