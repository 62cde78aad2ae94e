#!/usr/bin/env bash
# Installs Debian packages when this is root on a machine with apt-get; prints the line to type otherwise.
# usage: apt_install.sh WHAT_IS_MISSING PACKAGE...
set -euo pipefail
missing=$1
shift

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "$missing: installing $*" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet --quiet >&2
    apt-get install --yes --quiet --quiet --no-install-recommends "$@" >&2
else
    echo "$missing: sudo apt-get install -y $*" >&2
    exit 1
fi
