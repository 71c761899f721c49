#!/usr/bin/env bash
# newest.sh TESTS...: runs tests with the newest Python and JAX that this machine can have, in an
# environment of their own. Without a Python 3.12 or newer, or a registry, it says so and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv="${NEWEST_VENV:-.venv-newest}"

newest_python() {
  local version python
  for version in 3.13 3.12; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
      if "$python" -c "import ensurepip, venv, sys; sys.exit(sys.version_info[:2] != (${version/./, }))" \
        2>/dev/null; then
        echo "$python"
        return
      fi
    done
  done
  return 1
}

if ! python="$(newest_python)"; then
  echo "skipped: this machine has no Python 3.12 or 3.13, which current JAX needs"
  exit 0
fi
test -x "$venv/bin/pip" || "$python" -m venv "$venv"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
  jax -e '.[tests]'; then
  echo "skipped: the newest JAX cannot be installed on this machine"
  exit 0
fi
"$venv/bin/python" -c 'import jax, sys; print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}")'
"$venv/bin/python" -m pytest -n 2 --dist loadgroup "$@"
