#!/bin/sh
# Installs those packages of tools/packages.txt that dpkg does not know as installed. Does nothing, and needs no rights, when none is missing.
# VCATTN_SKIP_PACKAGES=1 leaves the machine alone (the dependencies come from somewhere else).
set -eu

list="$(dirname "$0")/packages.txt"
packages="$(sed 's/#.*//' "$list" | tr -s ' \n' ' ')"

fail() {
  echo "install_packages: $1" >&2
  exit 1
}

[ "${VCATTN_SKIP_PACKAGES:-0}" = 1 ] && exit 0
command -v dpkg-query >/dev/null ||
  fail "dpkg-query not found, only Debian and Ubuntu are known here; install the equivalents of $list, then set VCATTN_SKIP_PACKAGES=1"

missing=""
for package in $packages; do
  status="$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)"
  [ "$status" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

as_root="env"
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "missing packages, and neither root nor sudo is there to install them; as root: apt-get install$missing"
  as_root="sudo env"
fi

echo "installing:$missing"
export_frontend="DEBIAN_FRONTEND=noninteractive"
$as_root $export_frontend apt-get update -qq </dev/null || fail "'apt-get update' failed; check the network and /etc/apt"
# shellcheck disable=SC2086  # one word per package
$as_root $export_frontend apt-get install -y -qq --no-install-recommends $missing </dev/null ||
  fail "apt-get could not install:$missing"
