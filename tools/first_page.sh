#!/usr/bin/env bash
# `make first-page`: from nothing to the first report page, as on a new machine: a fresh environment,
# `pip install` of this checkout, one plan with its page. Prints the seconds of each, and of the
# processor, which count where others use the machine, too.
#
#   PYTHON=python3.12  the interpreter
set -euo pipefail
source="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
TIMEFORMAT='%R s, of the processor %U s'
cd "$folder"

echo -n 'environment    '; time "${PYTHON:-python3}" -m venv new
echo -n 'pip install    '; time new/bin/pip install --quiet --disable-pip-version-check "$source[models]"
echo -n 'plan and page  '; time new/bin/partita plan gpt-small --devices 8 --hardware h100 --html plan.html >plan.txt
ls -l plan.html
