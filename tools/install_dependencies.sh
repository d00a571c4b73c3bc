#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing: what a build needs, and with `test` what tests and lint need too.
# usage: sh tools/install_dependencies.sh [build|test] [EXTRA_PACKAGE...]
set -eu
what=${1:-build}
[ $# -gt 0 ] && shift
packages="cmake g++ ninja-build pkg-config libcli11-dev libfmt-dev libhwloc-dev libonig-dev libprotobuf-dev liburing-dev libutf8proc-dev
libxxhash-dev libyaml-cpp-dev nlohmann-json3-dev protobuf-compiler zlib1g-dev $*"
[ "$what" = test ] && packages="$packages clang-format-14 codespell libgmock-dev libgtest-dev libopenmpi-dev libsimde-dev mold openmpi-bin python3 python3-dev python3-venv shellcheck"

missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_dependencies: expected root or sudo to install:$missing" >&2; exit 1; }
  as_root=sudo
fi
echo "installing:$missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
