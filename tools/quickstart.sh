#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From nothing to a trained mixture-of-experts model: installs what is missing, builds, takes English text from a Debian package,
# trains a tokenizer and a small Mixtral on it for about three minutes, and generates from it. Run again, it goes straight to
# training.
# usage: sh tools/quickstart.sh      (QUICKSTART_SECONDS=180 and QUICKSTART_PROMPT change the training time and the prompt,
# QUICKSTART_PRESET=release the flags of the build)
set -eu
cd "$(dirname "$0")/.."
anabatic=build/release/anabatic
home=build/quickstart
model=$home/model
data=$home/data
seconds=${QUICKSTART_SECONDS:-180}
prompt=${QUICKSTART_PROMPT:-And God said unto Moses,}

sh tools/install_dependencies.sh build bible-kjv
mkdir -p build
cmake --preset "${QUICKSTART_PRESET:-release}" -DANABATIC_TESTS=AUTO >build/quickstart_configure.log 2>&1 || { cat build/quickstart_configure.log; exit 1; }
echo "building $anabatic (a few minutes the first time)"
cmake --build build/release --target anabatic -j "$(nproc)" >build/quickstart_build.log 2>&1 || { cat build/quickstart_build.log; exit 1; }
mkdir -p "$model" "$data"

if [ ! -f "$data/ready" ]; then
  sh tools/bible_chapters.sh "$data"
  "$anabatic" tokenize --train "$data/text.txt" --vocab_size 4096 --output "$model"
  cat >"$model/config.json" <<'JSON'
{
  "architectures": ["MixtralForCausalLM"],
  "model_type": "mixtral",
  "vocab_size": 4096,
  "hidden_size": 256,
  "intermediate_size": 768,
  "num_hidden_layers": 4,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "num_local_experts": 8,
  "num_experts_per_tok": 2,
  "max_position_embeddings": 1024,
  "hidden_act": "silu",
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "router_aux_loss_coef": 0.01,
  "output_router_logits": true,
  "tie_word_embeddings": false,
  "initializer_range": 0.02,
  "bos_token_id": 0,
  "eos_token_id": 0
}
JSON
  "$anabatic" tokenize --model.path "$model" --input "$data/train.jsonl" --output "$data/train"
  "$anabatic" tokenize --model.path "$model" --input "$data/validation.jsonl" --output "$data/validation"
  touch "$data/ready"
fi

train() { # train OUTPUT STEPS ARGUMENTS...
  output=$1
  steps=$2
  shift 2
  "$anabatic" train --model.path "$model" --model.init random --data.train "$data/train" --data.validation "$data/validation" \
    --data.sequence_length 256 --train.micro_batch_size 8 --train.precision bf16 --train.output "$output" --train.steps "$steps" \
    --optimizer.learning_rate 2e-3 --optimizer.warmup_steps 20 --optimizer.min_learning_rate 1e-4 "$@"
}

number=1
while [ -e "$home/run-$number" ]; do number=$((number + 1)); done
run=$home/run-$number

# A few steps tell how many fit into the time.
rm -rf "$home/probe"
train "$home/probe" 6 --optimizer.warmup_steps 2 >/dev/null 2>&1
steps=$(sed -n 's/.*"step_time_s": *\([0-9.e+-]*\).*/\1/p' "$home/probe/metrics.jsonl" | tail -n 3 | sort -g |
  awk -v s="$seconds" 'NR == 2 {n = int(s / $1)} END {print n < 20 ? 20 : n}')
rm -rf "$home/probe"

echo "training a Mixtral of 4 layers and 8 experts for $steps steps, some $seconds s"
train "$run" "$steps" 2>&1
trained=$run/$(cat "$run/latest")
printf '\na sample: %s' "$prompt"
"$anabatic" generate --model.path "$trained" --prompt "$prompt" --generate.max_new_tokens 96 --generate.temperature 0.7 --generate.seed 1
before=$(sed -n '1s/.*"loss": *\([0-9.]*\).*/\1/p' "$run/validation.jsonl")
printf '\n\nheld-out chapters: loss %.4f before training, after it\n' "$before"
"$anabatic" evaluate --model.path "$trained" --data.validation "$data/validation" --data.sequence_length 256
cat <<END

text            $data/text.txt
tokenizer       $model/tokenizer.json
tokens          $data/train.{bin,idx} $data/validation.{bin,idx}
trained model   $trained
metrics         $run/metrics.jsonl and TensorBoard events beside it
pictures        $run/report.html
END
