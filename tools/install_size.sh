#!/usr/bin/env bash
# Print how much the package without extras takes in a fresh virtual environment, and what takes most.
# Run from the repository root: tools/install_size.sh
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
before=$(du -sm "$work/venv" | cut -f1)
"$work/venv/bin/pip" install --quiet -c constraints.txt .
after=$(du -sm "$work/venv" | cut -f1)
compiled=$(find "$work/venv" -name '*.pyc' -print0 | du -cm --files0-from=- | tail -1 | cut -f1)
echo "empty environment (pip, setuptools)  ${before} MB"
echo "with fastocr-trt, no extras          ${after} MB"
echo "of that, Python's compiled caches    ${compiled} MB"
echo "largest parts:"
du -sm "$work"/venv/lib/python3*/site-packages/* | sort -rn | head -12 | sed "s|$work.*/site-packages/||"
if "$work/venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "torch is in it, and must not be"
    exit 1
fi
