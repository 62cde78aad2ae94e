#!/usr/bin/env bash
# Sees to it that a PostgreSQL server can be started (Debian keeps its programs off the PATH), unless
# the tests were given the address of one.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

if [ -z "${SHARECOORD_TEST_POSTGRES:-}" ] && ! command -v initdb >/dev/null \
    && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
    "$here/apt_install.sh" "PostgreSQL is missing" postgresql
fi
