#!/usr/bin/env bash
# Sees to it that a MariaDB server can be started, unless the tests were given the address of one. The
# core packages have the programs and start no service.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

if [ -z "${SHARECOORD_TEST_MARIADB:-}" ] && ! { command -v mariadb-install-db && command -v my_print_defaults; } >/dev/null; then
    "$here/apt_install.sh" "MariaDB is missing" mariadb-server-core mariadb-client-core
fi
