#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the libFuzzer programs of tests/fuzz with clang++ and runs each for some seconds. build/fuzz/corpus keeps the inputs that reach
# new code, build/fuzz/crash those that crash, leak, take 10 s or take too much memory.
# usage: sh tools/fuzz.sh [SECONDS] [TARGET...]      (default: 10 seconds, all targets; a target is NAME of NAME_target.cpp)
# FUZZ_RUNS: a number of inputs, after which a target ends even if seconds are left. The numbers that were reached are printed.
# FUZZ_SEED: a number that repeats the inputs of another run from the same corpus. Without one they differ from run to run.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
[ $# -gt 0 ] && shift
# shellcheck disable=SC2046 # a list of words
[ $# -gt 0 ] || set -- $(find tests/fuzz -name '*_target.cpp' -printf '%f\n' | sed 's/_target.cpp//' | sort)
[ $# -gt 0 ] || { echo "fuzz: expected targets in tests/fuzz, found none" >&2; exit 1; }
sh tools/install_dependencies.sh test clang libclang-rt-dev
jobs=$(nproc)
mkdir -p build/fuzz/crash build/fuzz/log

cmake --preset fuzz >build/fuzz/configure.log 2>&1 || { cat build/fuzz/configure.log; exit 1; }
# shellcheck disable=SC2046 # a list of words
cmake --build build/fuzz -j "$jobs" --target $(printf '%s_fuzzer ' "$@")

fuzz_one() { # fuzz_one NAME
  program=$(find build/fuzz/tests/fuzz -name "$1_fuzzer" -type f)
  corpus=$(find tests/fuzz -name "$1_corpus" -type d)
  mkdir -p "build/fuzz/corpus/$1"
  log=build/fuzz/log/$1.log
  # shellcheck disable=SC2086 # no option without a number
  if "$program" ${FUZZ_RUNS:+-runs=$FUZZ_RUNS} -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=32 -print_final_stats=1 \
    -seed="${FUZZ_SEED:-0}" -artifact_prefix="build/fuzz/crash/$1-" "build/fuzz/corpus/$1" "$corpus/accepted" "$corpus/refused" >"$log" 2>&1; then
    awk -v name="$1" '/number_of_executed_units/ {runs = $2} / cov: / {for (i = 1; i < NF; ++i) if ($i == "cov:") edges = $(i + 1)}
      END {print name ": " runs " inputs, " edges " edges"; exit runs == 0}' "$log"
  else
    tail -n 60 "$log"
    crash=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    [ -z "$crash" ] || { echo "$1: $crash in base64:" && base64 "$crash"; }
    return 1
  fi
}

status=0
while [ $# -gt 0 ]; do
  running=""
  for _ in $(seq "$jobs"); do
    [ $# -gt 0 ] || break
    fuzz_one "$1" &
    running="$running $!"
    shift
  done
  for process in $running; do wait "$process" || status=1; done
done
exit $status
