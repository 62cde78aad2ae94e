#!/usr/bin/env bash
# Makes sure that `make venv` can build the extension of sdk/batches: a compiler, and Python's headers.
# Without them everything works, and records are opened in Python. usage: ensure_compiler.sh [PYTHON]
set -euo pipefail
python=${1:-python3}

command -v gcc >/dev/null || command -v cc >/dev/null \
    || "$(dirname "$0")/apt_install.sh" "a C compiler is missing" gcc libc6-dev
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
test -e "$headers/Python.h" || "$(dirname "$0")/apt_install.sh" "Python.h is missing" python3-dev
