#!/usr/bin/env bash
# Sees to it that a JDK of Java 17 or newer and Maven are there: the real brokers of the tests run on
# them, and the benchmark's Java peer is compiled.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

java_major() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

if ! command -v javac >/dev/null || [ "$(java_major)" -lt 17 ]; then
    "$here/apt_install.sh" "Java 17 is missing" openjdk-17-jdk-headless
fi
if ! command -v mvn >/dev/null; then
    "$here/apt_install.sh" "Maven is missing" maven
fi
