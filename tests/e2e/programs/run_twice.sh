#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p results
for part in first second; do
  python loop.py --out "out/$part" "$@" | tee "results/$part.txt"
done
