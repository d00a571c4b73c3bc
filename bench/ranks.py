#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks against runs of one rank with all threads, of the same global batch, in alternating rounds.

    ranks.py [--models bench/yardsticks/moe_coarse ...] [--ranks 2] [--accumulation 1 4] [--steps 4] [--rounds 3] [--mpirun mpirun]
             [--save | --links 0.3 | --planning]

Forms: data parallel with a sharded optimizer, and with experts shared by all ranks. Ranks are threads, or processes with --mpirun. Each rank has
the micro-batches of --accumulation; the single rank has all of them. A run is killed after its steps, so that it saves nothing. A ratio is of
one round: tokens a second of the ranks over those of the single one. It prints the median and the range, the exposed share of exchanges,
predicted and measured seconds of a step, and predicted and measured peak memory of the first process.

With --save it compares the time of a checkpoint instead, from the last step to `latest`, and of the same bytes as plain files that are
written and synced by one thread and by as many as there are ranks, which is what the disk allows.

With --links SHARE data parallel runs exchange over emulated links. These are so slow that a step's traffic takes that share of its backward,
which is two thirds of a step without them. It prints the part of the traffic that steps waited for.

With --planning it compares the time to the end of the first step of a model of many small layers, whose plan within a budget takes most of it.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = 700  # tokens


def write_tokens(path, count, vocabulary):
    """Random tokens as PATH.bin and PATH.idx, in Megatron's format."""
    documents = count // DOCUMENT
    numpy.random.default_rng(1).integers(0, vocabulary, documents * DOCUMENT, dtype=numpy.uint16).tofile(f"{path}.bin")
    with open(f"{path}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        numpy.full(documents, DOCUMENT, dtype=numpy.int32).tofile(index)
        (numpy.arange(documents, dtype=numpy.int64) * DOCUMENT * 2).tofile(index)
        numpy.arange(documents + 1, dtype=numpy.int64).tofile(index)


def run(options, model, tokens, ranks, accumulation, *more):
    """Medians of metrics.jsonl without the first step, seconds to the end of that, and a text of predicted and measured time and memory. With
    --save, seconds and bytes of the checkpoint."""
    with tempfile.TemporaryDirectory(dir=options.directory) as output:
        processes = options.mpirun is not None and ranks > 1
        command = [options.mpirun, "--oversubscribe", "-n", ranks] if processes else []
        threads = options.threads // ranks if processes else options.threads
        command += [options.binary, "train", "--model.path", model, "--model.init", "random", "--data.train", tokens,
                    "--data.sequence_length", options.sequence, "--train.micro_batch_size", options.batch, "--train.precision", "bf16",
                    "--train.gradient_accumulation_steps", accumulation, "--train.steps", options.steps if options.save else 1000, "--train.save_every", 0,
                    "--parallel.local_ranks", 1 if processes else ranks, "--device.threads", threads, "--memory.budget", "none",
                    "--train.output", f"{output}/run", *more]
        metrics = pathlib.Path(output) / "run/metrics.jsonl"
        begin, first = time.monotonic(), None
        with open(f"{output}/text", "w") as text:
            process = subprocess.Popen([str(word) for word in command], stdout=text, stderr=text, start_new_session=True)
            try:
                while process.poll() is None and (options.save or not metrics.exists() or metrics.read_text().count("\n") < options.steps):
                    time.sleep(0.05)
                    if first is None and metrics.exists() and metrics.stat().st_size > 0:
                        first = time.monotonic() - begin
                ended = process.poll() is not None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = pathlib.Path(output, "text").read_text()
        if ended != options.save or process.returncode > 0:
            sys.exit(f"ranks.py: {' '.join(map(str, command))}\n{said[-4000:]}")
        if options.save:
            return save_of(pathlib.Path(output) / "run")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()[1 : options.steps]]
        median = {key: statistics.median(line.get(key) or 0 for line in lines)
                  for key in ("tokens_per_second", "step_time_s", "comm_exposed_s", "comm_bytes", "peak_memory_bytes", "planned_memory_bytes")}
        predicted = re.search(r"step: predicted ([\d.]+ \S+)", said)[1]
        median["first_step"] = first
        median["text"] = (f"{predicted} / {median['step_time_s']:.2f} s, "
                          f"{median['planned_memory_bytes'] / 2**20:.0f} / {median['peak_memory_bytes'] / 2**20:.0f} MiB")
        return median


def save_of(output):
    """Seconds from the last line of metrics.jsonl to `latest`, and the checkpoint's bytes."""
    seconds = ((output / "latest").stat().st_mtime_ns - (output / "metrics.jsonl").stat().st_mtime_ns) * 1e-9
    return seconds, sum(file.stat().st_size for file in (output / (output / "latest").read_text().strip()).iterdir())


def write_plain(path, count):
    block = numpy.random.default_rng(2).integers(0, 256, 1 << 22, dtype=numpy.uint8).tobytes()
    with open(path, "wb", buffering=0) as file:
        for begin in range(0, count, len(block)):
            file.write(block[:count - begin])
        os.fsync(file.fileno())


def plain_seconds(options, count, writers):
    with tempfile.TemporaryDirectory(dir=options.directory) as folder, concurrent.futures.ThreadPoolExecutor(writers) as pool:
        begin = time.monotonic()
        list(pool.map(lambda i: write_plain(f"{folder}/{i}", count // writers), range(writers)))
        return time.monotonic() - begin


def compare_saves(options, model, tokens):
    """Checkpoints of one rank, of ranks with all experts, and of ranks that share them; and plain files; in turn."""
    forms = {"one rank": (1,), "data": (options.ranks,), "expert": (options.ranks, "--parallel.expert", options.ranks)}
    seconds = {name: [] for name in [*forms, "disk, 1 writer", f"disk, {options.ranks} writers"]}
    for _ in range(options.rounds):
        for form, (ranks, *more) in forms.items():
            os.sync()
            one, size = run(options, model, tokens, ranks, 1, *more)
            seconds[form].append(one)
        for writers in (1, options.ranks):
            os.sync()
            seconds[f"disk, {writers} writer{'s' * (writers > 1)}"].append(plain_seconds(options, size, writers))
    print(f"{pathlib.Path(model).name:<12} a checkpoint of {size * 1e-9:.2f} GB")
    for name, of_rounds in seconds.items():
        ratios = [own / one for own, one in zip(of_rounds, seconds["one rank"])]
        print(f"  {name:<16} {statistics.median(of_rounds):6.2f} s, {statistics.median(ratios):.2f} of one rank's "
              f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def compare_links(options, model, tokens):
    """Steps over links that are as fast as the machine copies, and over slow ones."""
    name = pathlib.Path(model).name
    for _ in range(options.rounds):
        plain = run(options, model, tokens, options.ranks, 1)
        seconds = options.links * plain["step_time_s"] * 2 / 3
        rate = plain["comm_bytes"] / seconds
        with tempfile.NamedTemporaryFile("w", suffix=".json") as cluster:
            json.dump({"levels": [{"name": "node", "ranks": options.ranks, "latency_us": 50, "gb_per_s": rate * 1e-9}]}, cluster)
            cluster.flush()
            slow = run(options, model, tokens, options.ranks, 1, "--parallel.emulate", cluster.name)
        print(f"{name:<12} {plain['comm_bytes'] * 1e-6:.0f} MB a step over links of {rate * 1e-9:.2f} GB/s: {seconds:.2f} s, of which exposed "
              f"{100 * slow['comm_exposed_s'] / seconds:.0f} % (without the links {plain['comm_exposed_s']:.2f} s); step, peak predicted / measured: "
              f"{slow['text']}, without the links {plain['text']}", flush=True)


def compare_planning(options, directory):
    """Nothing but the plan takes long: each rank's tensors are small."""
    model = pathlib.Path(directory) / "layers"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({
        "model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 32, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "intermediate_size": 64, "norm_topk_prob": True, "max_position_embeddings": 512, "rope_theta": 1e4, "tie_word_embeddings": False,
        "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2}))
    tokens = f"{directory}/layers_tokens"
    write_tokens(tokens, 64 * options.ranks * options.sequence, 512)
    options.batch, options.steps = 1, 2
    seconds = {1: [], options.ranks: []}
    for _ in range(options.rounds):
        for ranks, of_ranks in seconds.items():
            of_ranks.append(run(options, model, tokens, ranks, options.ranks // ranks, "--memory.budget", f"{options.budget * ranks}MB")["first_step"])
    ratios = [several / one for one, several in zip(seconds[1], seconds[options.ranks])]
    print(f"to the end of the first step within {options.budget} MB a rank: one rank {statistics.median(seconds[1]):.2f} s, {options.ranks} ranks "
          f"{statistics.median(seconds[options.ranks]):.2f} s, {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/release/anabatic"))
    parser.add_argument("--models", nargs="+", default=[str(ROOT / f"bench/yardsticks/{name}") for name in ("moe_coarse", "moe_fine")])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mpirun", help="a launcher: ranks are processes")
    parser.add_argument("--save", action="store_true", help="the time of a checkpoint")
    parser.add_argument("--links", type=float, help="a share of the backward, such as 0.3, that traffic takes over emulated links")
    parser.add_argument("--planning", action="store_true", help="the time to the first step of a model of many layers")
    parser.add_argument("--budget", type=int, default=200, help="MB a rank, for --planning")
    parser.add_argument("--directory", help="for checkpoints and plain files; default: that of temporary files")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 4])
    for name, value in (("batch", 4), ("sequence", 512), ("steps", 4), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with the run
    print(f"{options.ranks} ranks and 1 rank on {options.threads} threads, micro-batches of {options.batch} x {options.sequence} tokens")
    with tempfile.TemporaryDirectory() as directory:
        if options.planning:
            compare_planning(options, directory)
            return
        for model in options.models:
            vocabulary = min(json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"], 65535)
            tokens = f"{directory}/{pathlib.Path(model).name}"
            most = options.ranks * max(options.accumulation)
            write_tokens(tokens, 2 * (options.steps + 2) * most * options.batch * (options.sequence + DOCUMENT), vocabulary)
            if options.save or options.links:
                (compare_saves if options.save else compare_links)(options, model, tokens)
                continue
            for accumulation in options.accumulation:
                forms = {"data": (), "expert": ("--parallel.expert", options.ranks)}
                ratios = {form: [] for form in forms}
                exposed, last = {}, {}
                for _ in range(options.rounds):
                    one = run(options, model, tokens, 1, accumulation * options.ranks)
                    last["one rank"] = one["text"]
                    for form, more in forms.items():
                        several = run(options, model, tokens, options.ranks, accumulation, *more)
                        exposed[form], last[form] = several["comm_exposed_s"] / several["step_time_s"], several["text"]
                        ratios[form].append(several["tokens_per_second"] / one["tokens_per_second"])
                name = pathlib.Path(model).name
                print(f"{name:<12} {accumulation} micro-batches a rank; one rank {last['one rank']}")
                for form, of_rounds in ratios.items():
                    print(f"  {form:<7} {statistics.median(of_rounds):.2f} ({min(of_rounds):.2f} to {max(of_rounds):.2f}), "
                          f"exposed {100 * exposed[form]:.1f} %; step, peak predicted / measured: {last[form]}", flush=True)


if __name__ == "__main__":
    main()
