#!/usr/bin/env bash
# Prints the path of a Helm 3 or 4: the one on the PATH, else one built by Go once (2 to 3 minutes)
# and kept in $SHARECOORD_CACHE/bin (default ~/.cache/sharecoord/bin).
set -euo pipefail
version=v4.3.1
cache=${SHARECOORD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sharecoord}/bin
built=$cache/helm-$version

if command -v helm >/dev/null && helm version --short 2>/dev/null | grep -q '^v[34]\.'; then
    command -v helm
    exit 0
fi
if [ ! -x "$built" ]; then
    if ! command -v go >/dev/null; then
        echo "Helm is missing and so is Go to build it: install Helm 3 or 4, or Go with: apt-get install -y golang-go" >&2
        exit 1
    fi
    echo "building Helm $version once, 2 to 3 minutes" >&2
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    GOBIN=$scratch go install "helm.sh/helm/v4/cmd/helm@$version" >&2
    mv "$scratch/helm" "$built"
fi
echo "$built"
