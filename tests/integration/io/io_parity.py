# SPDX-License-Identifier: Apache-2.0
"""Our files against the readers and writers of other projects: safetensors, Megatron's layout, TensorBoard."""

import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

TOOL = sys.argv[1]


def tool(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def check_safetensors(directory):
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "bf16": torch.randn(7, 3, generator=generator).to(torch.bfloat16),
        "f16": torch.randn(5, generator=generator).to(torch.float16),
        "f32": torch.randn(2, 3, 5, generator=generator),
        "f64": torch.randn(3, generator=generator, dtype=torch.float64),
        "i64": torch.arange(11),
        "i32": torch.arange(4, dtype=torch.int32),
        "u8": torch.arange(3, dtype=torch.uint8),
        "i8": torch.arange(-3, 3, dtype=torch.int8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
    }
    for name, split in (("one", False), ("sharded", True)):
        source = directory / f"source_{name}"
        source.mkdir()
        if split:
            names = sorted(tensors)
            save_file({n: tensors[n] for n in names[:5]}, source / "x-1.safetensors")
            save_file({n: tensors[n] for n in names[5:]}, source / "x-2.safetensors")
            weight_map = {n: f"x-{1 if i < 5 else 2}.safetensors" for i, n in enumerate(names)}
            (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        else:
            save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
        for shard_bytes, num_files in ((1 << 30, 1), (100, None)):
            target = directory / f"target_{name}_{shard_bytes}"
            target.mkdir()
            tool("copy_safetensors", source, target, shard_bytes)
            files = sorted(target.glob("*.safetensors"))
            assert num_files is None or len(files) == num_files, files
            loaded = {}
            for file in files:
                loaded |= load_file(file)
            assert loaded.keys() == tensors.keys(), loaded.keys()
            for key, want in tensors.items():
                got = loaded[key]
                assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want), key
            if len(files) > 1:
                index = json.loads((target / "model.safetensors.index.json").read_text())
                assert index["weight_map"].keys() == tensors.keys()
                total = sum(t.numel() * t.element_size() for t in tensors.values())
                assert index["metadata"]["total_size"] == total


def megatron_files(documents, vocab_size):
    """The bytes of .bin and .idx, after the description of Megatron-LM's indexed dataset format."""
    dtype, code = (np.uint16, 8) if vocab_size < 65500 else (np.int32, 4)
    lengths = np.array([len(d) for d in documents], dtype=np.int32)
    pointers = np.zeros(len(documents), dtype=np.int64)
    if len(documents) > 1:
        pointers[1:] = np.cumsum(lengths[:-1], dtype=np.int64) * dtype().itemsize
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
    index += lengths.tobytes() + pointers.tobytes() + np.arange(len(documents) + 1, dtype=np.int64).tobytes()
    return b"".join(np.array(d, dtype=dtype).tobytes() for d in documents), index


def check_indexed(directory):
    random = np.random.default_rng(2)
    for vocab_size in (300, 65499, 65500, 128000):
        for count in (0, 1, 500):
            documents = [random.integers(0, vocab_size, random.integers(0, 60)).tolist() for _ in range(count)]
            text = directory / "documents.txt"
            text.write_text("".join(" ".join(map(str, d)) + "\n" for d in documents))
            prefix = directory / f"tokens_{vocab_size}_{count}"
            tool("write_indexed", text, prefix, vocab_size)
            want_bin, want_idx = megatron_files(documents, vocab_size)
            assert prefix.with_suffix(".bin").read_bytes() == want_bin, (vocab_size, count)
            assert prefix.with_suffix(".idx").read_bytes() == want_idx, (vocab_size, count)
            assert tool("print_indexed", prefix) == text.read_text(), (vocab_size, count)


SPLITS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def check_chunks(directory):
    """Splitting chunk by chunk gives the pieces of the whole text, at every safe place of a mixed text."""
    random = np.random.default_rng(3)
    parts = ["word", "Über", "don't", "123", "4567", "中文", "日本語", "。", "!", "...", "-", " ", "  ", "\t", "\n", "\n",
             "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "e\u0301", "🙂", "'s", "(", ")", "_"]
    text = "".join(parts[i] for i in random.integers(0, len(parts), 700_000))
    file = directory / "mixed.txt"
    data = text.encode()
    file.write_bytes(data)
    lengths = [int(n) for n in tool("print_chunks", file).split()]
    assert sum(lengths) == len(data) and len(lengths) >= len(data) // (1 << 20), lengths
    # Every safe place is tried, not only those after a mark: as few bytes on either side as a split looks at.
    places = [m.end() for m in re.finditer(r"\S\n(?=[^\W_])", text)]
    assert len(places) > 1000, len(places)
    cuts, offset = [], 0
    for length in lengths:
        cuts.append(data[offset : offset + length].decode())
        offset += length
    for name, pattern in SPLITS.items():
        split = Split(Regex(pattern), "isolated")
        whole = [piece for piece, _ in split.pre_tokenize_str(text)]
        chunked = [piece for cut in cuts for piece, _ in split.pre_tokenize_str(cut)]
        assert chunked == whole, name
        for place in places[:: len(places) // 1000]:
            left, right = text[place - 40 : place], text[place : place + 40]
            pieces = [p for p, _ in split.pre_tokenize_str(left)] + [p for p, _ in split.pre_tokenize_str(right)]
            assert pieces == [p for p, _ in split.pre_tokenize_str(left + right)], (name, left + right)


def check_events(directory):
    tool("write_events", directory / "events")
    events = EventAccumulator(str(directory / "events"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["train/loss", "train/zero"], events.Tags()
    losses = events.Scalars("train/loss")
    assert [e.step for e in losses] == list(range(100))
    assert [e.value for e in losses] == [float(np.float32(8.0 / (s + 1))) for s in range(100)]
    assert [e.value for e in events.Scalars("train/zero")] == [0.0] * 100


def main():
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_safetensors, check_indexed, check_chunks, check_events):
            check(Path(folder))
            print(f"{check.__name__}: equal")


main()
