#!/usr/bin/env bash
# Fetches D3, which the report page embeds, from its npm package, in the version that the page names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

page=src/partita/report/page
version="$(sed -n 's/^D3_VERSION = "\(.*\)"$/\1/p' $page/__init__.py)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "d3@$version" >/dev/null && tar xzf d3-*.tgz)
cp "$folder/package/dist/d3.min.js" $page/static/vendor/d3.min.js
cp "$folder/package/LICENSE" $page/static/vendor/d3.LICENSE
sha256sum $page/static/vendor/d3.min.js
