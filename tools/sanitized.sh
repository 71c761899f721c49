#!/usr/bin/env bash
# sanitized.sh PYTHON PYTEST_ARGS...: builds the inner loops in C so that any read or write outside of
# an array, and any undefined behaviour, ends the process, and runs their tests with that build.
# Without a compiler that has the sanitizers it says so and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$1"
shift
build="build/sanitized"
report="$PWD/$build/report"
mkdir -p "$build"
rm -f "$report".*

skip() {
  echo "skipped: $1"
  exit 0
}

command -v cc >/dev/null || skip "there is no C compiler"
preload=()
for library in libasan.so libstdc++.so; do
  path="$(cc -print-file-name="$library")"
  test -e "$path" || skip "the C compiler has no $library"
  preload+=("$path")
done
include="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
test -e "$include/Python.h" || skip "Python's headers are not installed"
flags=(-shared -fPIC -O1 -g -fno-omit-frame-pointer -ffp-contract=off -Wall -Wextra -Werror
  -Wno-unused-parameter -fsanitize=address,undefined -fno-sanitize-recover=all
  -DPy_LIMITED_API=0x030B0000 "-I$include")
for source in src/partita/native/*.c; do
  cc "${flags[@]}" "$source" -o "$build/$(basename "$source" .c).abi3.so"
done

export ASAN_OPTIONS="detect_leaks=0:log_path=$report"
export UBSAN_OPTIONS="print_stacktrace=1:log_path=$report"
run() { LD_PRELOAD="${preload[*]}" "$python" "$@"; }
run -c 'import numpy' 2>/dev/null || skip "Python does not start with $(basename "${preload[0]}")"
run -m tools.sanitized "$build" -n 0 -p no:cacheprovider "$@" || {
  status=$?
  cat "$report".* 2>/dev/null || true
  exit "$status"
}
