#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding on one core against `tokenizers` and `sentencepiece`, with the same model and text, in alternating rounds.

    tokenizers_speed.py DRIVER TEXT ... [--model tokenizer.model] [--rounds 5] [--megabytes 8]

DRIVER is build/release/tests/integration/tokenizer/tokenizer_driver. Without --model, a BPE and a Unigram model of 16000 pieces are
trained on the texts. Times are CPU seconds; the median of rounds is printed.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sentencepiece  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=8)
    return parser.parse_args()


def train(folder, text, kind):
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / kind), model_type=kind, vocab_size=16000, hard_vocab_limit=False, num_threads=2,
        minloglevel=2, input_sentence_size=100000, byte_fallback=True)
    return folder / f"{kind}.model"


def speed_of(num_bytes, encode):
    begin = time.process_time()
    encode()
    return num_bytes / (time.process_time() - begin) / 1e6


def our_speed(driver, model, text):
    done = subprocess.run([driver, model, "--speed", text], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1].split()[0])  # of the last of three, with warm caches


def compare(arguments, folder, model, text):
    written = folder / "tokenizer.json"
    written.write_bytes(subprocess.run([arguments.driver, model, "--json"], stdout=subprocess.PIPE, check=True).stdout)
    peer = Tokenizer.from_file(str(written))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    content = text.read_text("utf-8")
    num_bytes = text.stat().st_size
    speeds = {"ours": [], "tokenizers": [], "sentencepiece": []}
    for _ in range(arguments.rounds):
        speeds["ours"].append(our_speed(arguments.driver, model, text))
        speeds["tokenizers"].append(speed_of(num_bytes, lambda: peer.encode_batch_fast([content], add_special_tokens=False)))
        speeds["sentencepiece"].append(speed_of(num_bytes, lambda: pieces.encode(content)))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{model.stem}: " + ", ".join(f"{name} {value:.1f} MB/s" for name, value in medians.items())
          + f"; {medians['ours'] / medians['tokenizers']:.2f}x of tokenizers", flush=True)


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        content = b"".join(path.read_bytes() for path in arguments.texts)[:int(arguments.megabytes * 1e6)]
        text.write_text(content.decode("utf-8", errors="ignore"), "utf-8")
        for model in [arguments.model] if arguments.model else [train(folder, text, kind) for kind in ("bpe", "unigram")]:
            compare(arguments, folder, model, text)


if __name__ == "__main__":
    main()
