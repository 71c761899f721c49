#!/usr/bin/env bash
# Chromium and its driver, for the tests of the report page: installed where they are missing and
# Debian's packages can be had. Exit status 1 where they cannot.
set -euo pipefail

there() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

there && exit
((EUID == 0)) && command -v apt-get >/dev/null || exit 1
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core
there
