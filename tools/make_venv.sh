#!/usr/bin/env bash
# Makes a virtual environment, or keeps the one that is there.
# usage: make_venv.sh FOLDER [PYTHON]
set -euo pipefail
folder=$1
python=${2:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Python 3.11 or newer is needed and '$python' is not: install it or name it, e.g. make PYTHON=python3.12 venv" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "Python's venv module is missing: apt-get install -y python3-venv" >&2
    exit 1
fi
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$folder"
fi
