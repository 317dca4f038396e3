#!/usr/bin/env bash
# Installs a wheel into virtual environments and runs tests/python there: first without torch, then with torch and the newest diffusers from
# PyPI, then the tests of diffusers again with older releases of it.
#
#     tools/test_python.sh FOLDER ENVIRONMENTS [TESTS]
#
# FOLDER: holds the wheel; ENVIRONMENTS: folder of the environments, kept for the next run; TESTS: run these alone, with torch.
set -euo pipefail
[ $# = 2 ] || [ $# = 3 ] || { sed -n '2,7s/^# \?//p' "$0" >&2; exit 2; }
wheel=$(realpath "$1"/vcattn-*.whl)
mkdir -p "$2"
environments=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONNOUSERSITE=1
unset PYTHONPATH VCATTN_LIBRARY
# Before the newest, whose models test_minimax_h3.py has besides.
older_diffusers=(0.36.0 0.39.0)

# run_tests ENVIRONMENT EXTRA TESTS...
run_tests() {
  local env="$environments/$1"
  [ -d "$env" ] || python3 -m venv "$env"
  "$env/bin/pip" install --quiet --upgrade pip
  "$env/bin/pip" install --quiet "$wheel[$2]"
  "$env/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"  # the version is the same from run to run
  "$env/bin/python" -m pytest "${@:3}"
}

if [ $# = 3 ]; then
  run_tests torch test-torch "$3"
else
  run_tests plain test tests/python/core
  run_tests torch test-torch tests/python/core tests/python/with_torch  # tests/python/gpu needs a CUDA device
  for release in "${older_diffusers[@]}"; do
    folder="$environments/diffusers-$release"
    [ -d "$folder" ] || "$environments/torch/bin/pip" install --quiet --no-deps --target "$folder" "diffusers==$release"
    echo "diffusers $release: tests/python/with_torch/test_diffusers.py"
    VCATTN_EXPECTED_DIFFUSERS="$release" PYTHONPATH="$folder" "$environments/torch/bin/python" -m pytest tests/python/with_torch/test_diffusers.py
  done
fi
