#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of model families against qwen3_moe's of the same sizes and FLOPs, in alternating rounds.

    families.py [--families glm4_moe gpt_oss ...] [--sizes coarse fine] [--layers 8] [--vocabulary 32000] [--rounds 9]

Hidden width, layers, heads, vocabulary, experts and their widths are those of a yardstick. A shared expert stands for one of the chosen.
A ratio is of one round: seconds per model FLOP of the family over those of qwen3_moe. It prints the median, the quarters between which half
of the rounds lie, and the range. With --dispatch it prints the kernels of each family's plan that no call of qwen3_moe uses.
qwen3_moe+biases and ernie4_5_moe+biases are these families with biases of their projections, for --families and --against.
"""
import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

# hidden, heads, key-value heads, experts, chosen, width of an expert; as bench/yardsticks/moe_coarse and moe_fine, and a wider one
SIZES = {"coarse": (512, 8, 4, 8, 2, 1536), "fine": (512, 8, 4, 64, 8, 256), "wide": (1024, 16, 4, 32, 4, 512)}


def config_of(name, sizes, layers, vocabulary):
    family = name.split("+")[0]
    hidden, heads, kv_heads, experts, chosen, width = sizes
    config = {
        "model_type": family, "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": hidden // heads, "max_position_embeddings": 4096, "rope_theta": 1e6,
        "num_experts_per_tok": chosen, "intermediate_size": width, "tie_word_embeddings": False, "initializer_range": 0.02,
        "bos_token_id": 1, "eos_token_id": 2}
    loss = {"router_aux_loss_coef": 0.001, "output_router_logits": True}
    own = {
        "qwen3_moe": {"num_experts": experts, "moe_intermediate_size": width, "norm_topk_prob": True, **loss},
        "qwen2_moe": {"num_experts": experts, "moe_intermediate_size": width, "shared_expert_intermediate_size": width,
                      "num_experts_per_tok": chosen - 1, **loss},
        "glm4_moe": {"n_routed_experts": experts, "moe_intermediate_size": width, "n_shared_experts": 1, "num_experts_per_tok": chosen - 1,
                     "first_k_dense_replace": 0, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5,
                     "num_nextn_predict_layers": 0, "n_group": 1, "topk_group": 1},
        "minimax_m2": {"num_local_experts": experts, "rotary_dim": hidden // heads // 2, **loss},
        "gpt_oss": {"num_local_experts": experts, "sliding_window": 128, **loss},
        "olmoe": {"num_experts": experts, "clip_qkv": 8.0, **loss},
        "ernie4_5_moe": {"moe_num_experts": experts, "moe_k": chosen - 1, "moe_intermediate_size": width, "moe_num_shared_experts": 1,
                         "moe_layer_start_index": 0},
        "granitemoe": {"num_local_experts": experts, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
                       "residual_multiplier": 0.22, "logits_scaling": 6.0, **loss},
    }
    with_biases = {"qwen3_moe": {"attention_bias": True}, "ernie4_5_moe": {"use_bias": True}}
    return config | own[family] | (with_biases[family] if name.endswith("+biases") else {})


def kernels(options, directory):
    """How many calls of a step each (op, kernel) has."""
    command = [options.binary, "plan", directory, "--explain-dispatch", "--train.micro_batch_size", str(options.batch),
               "--data.sequence_length", str(options.sequence), "--train.precision", options.precision,
               "--device.threads", str(options.threads)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return collections.Counter(re.findall(r"^n\d+ \S+ (\S+) .*\): (\S+)", result.stdout + result.stderr, re.MULTILINE))


def quarters(values):
    if len(values) < 3:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def measure(options, name, family, folder):
    directories = {}
    for each in (options.against, family):
        directory = folder / f"{each}.{name}"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config_of(each, SIZES[name], options.layers, options.vocabulary)))
        directories[each] = str(directory)
    if options.dispatch:
        known, found = (kernels(options, directories[each]) for each in (options.against, family))
        for (op, kernel), count in sorted(found.items()):
            if (op, kernel) not in known:
                print(f"{name:8} {family:12} {count:4} x {op}: {kernel}", flush=True)
        return
    sides = {}
    for each, directory in directories.items():
        settings = {"model.path": directory, "batch": options.batch, "sequence": options.sequence}
        sides[each] = common.Anabatic(options, "step", settings | ({"cpu_time": True} if options.cpu_time else {}))
        sides[each].round()
    flops = {each: side.header["parts"][0]["flops"] for each, side in sides.items()}
    seconds = {each: [] for each in sides}
    for i in range(options.rounds):
        for each in (options.against, family) if i % 2 == 0 else (family, options.against):
            time.sleep(common.SETTLE_SECONDS)
            seconds[each].append(sides[each].round()["seconds"]["total"])
    for side in sides.values():
        side.close()
    share = flops[family] / flops[options.against]
    ratios = [mine / theirs / share for mine, theirs in zip(seconds[family], seconds[options.against])]
    low, high = quarters(ratios)
    print(f"{name:8} {family:12} {statistics.median(seconds[family]) * 1e3:8.1f} ms, {options.against} {statistics.median(seconds[options.against]) * 1e3:8.1f} ms,"
          f" FLOPs x {share:.3f}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}; {min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    parser.add_argument("--families", nargs="+", default=["glm4_moe", "minimax_m2", "gpt_oss", "olmoe", "granitemoe"])
    parser.add_argument("--against", default="qwen3_moe")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["coarse", "fine"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu_time", action="store_true", help="the thread's own time, with --threads 1")
    parser.add_argument("--dispatch", action="store_true")
    options = parser.parse_args()
    options.no_check = True
    return options


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            for family in options.families:
                measure(options, name, family, pathlib.Path(folder))


if __name__ == "__main__":
    main()
