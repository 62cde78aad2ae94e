#!/usr/bin/env bash
# Sees to it that Chromium is there: the benchmark's page is looked at in a real browser.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

for program in chromium chromium-browser google-chrome; do
    command -v "$program" >/dev/null && exit 0
done
"$here/apt_install.sh" "Chromium is missing" chromium fonts-dejavu-core
