# SPDX-License-Identifier: Apache-2.0
"""Every type of blocks of weight files against the packages gguf and torch, to the bit: random bytes, every value of a
byte, scales that are subnormal, infinite or no number, and values at the edges of rounding. A NaN equals every NaN.

usage: parity_block_types.py CONVERT_BLOCKS
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

READ = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
WRITTEN = "F32 F16 BF16 Q8_0 Q4_0 MXFP4".split()
BLOCKS = 4096
FLOAT4 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=numpy.float32)
random = numpy.random.default_rng(20240607)
failures = []


class Converter:
    def __init__(self, program, directory):
        self.program, self.directory = program, pathlib.Path(directory)

    def __call__(self, *arguments, dtype):
        """Arrays become files; the result is read as `dtype`."""
        paths = [self.save(i, a) if isinstance(a, numpy.ndarray) else a for i, a in enumerate(arguments)]
        output = self.directory / "output"
        subprocess.run([self.program, *map(str, paths), output], check=True)
        return numpy.fromfile(output, dtype=dtype)

    def save(self, number, array):
        path = self.directory / f"input{number}"
        array.tofile(path)
        return path


def check(what, got, want):
    want = numpy.ascontiguousarray(want).ravel()
    if got.dtype != want.dtype or got.shape != want.shape:
        failures.append(f"{what}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}")
        return
    same = got.view(numpy.uint8).reshape(got.size, -1) == want.view(numpy.uint8).reshape(want.size, -1)
    same = same.all(axis=1)
    if got.dtype == numpy.float32:
        same |= numpy.isnan(got) & numpy.isnan(want)
    if not same.all():
        worst = int(numpy.flatnonzero(~same)[0])
        failures.append(f"{what}: {(~same).sum()} of {same.size} differ, first [{worst}]: {got[worst]!r}, "
                        f"expected {want[worst]!r}")


def blocks_of(size):
    """Random bytes, and each value of a byte in every place of a block."""
    every = numpy.repeat(numpy.arange(256, dtype=numpy.uint8), size).reshape(256, size)
    shuffled = random.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
    return numpy.concatenate([shuffled, every]).ravel()


def values_of(count):
    """Weights, bf16 weights, ties of the rounding, blocks of zeros and of one large value; the magnitudes are those that
    a binary16 scale can have."""
    normal = random.normal(0, 0.02, (BLOCKS, count)).astype(numpy.float32)
    bf16 = (normal.view(numpy.uint32) & 0xFFFF0000).view(numpy.float32)
    ties = random.integers(-254, 255, (BLOCKS, count)).astype(numpy.float32) * numpy.float32(0.5)
    ties[:, 0] = 127
    eighths = random.integers(-64, 65, (BLOCKS, count)).astype(numpy.float32) * numpy.float32(0.125)
    eighths[:, 1] = -8
    sixes = random.integers(-48, 49, (BLOCKS, count)).astype(numpy.float32) * numpy.float32(0.125)
    below = numpy.nextafter(ties, numpy.float32(0))
    spread = normal * numpy.float32(2.0) ** random.integers(-30, 20, (BLOCKS, 1)).astype(numpy.float32)
    powers = numpy.float32(2.0) ** random.integers(-20, 12, (BLOCKS, count)).astype(numpy.float32)
    single = numpy.zeros((2 * count, count), dtype=numpy.float32)
    for i in range(count):
        single[2 * i, i], single[2 * i + 1, i] = 3, -3
    zeros = numpy.zeros((2, count), dtype=numpy.float32)
    zeros[1] = -0.0
    parts = [normal, bf16, ties, -ties, eighths, -eighths, sixes, below, spread, powers,
             numpy.nextafter(powers, numpy.float32(0)), single, zeros]
    return numpy.concatenate(parts)


def check_dequantise(convert, name):
    kind = GGMLQuantizationType[name]
    blocks = blocks_of(GGML_QUANT_SIZES[kind][1])
    with numpy.errstate(all="ignore"):
        want = dequantize(blocks.reshape(-1, GGML_QUANT_SIZES[kind][1]), kind)
    check(f"dequantise {name}", convert("dequantise", name, blocks, dtype=numpy.float32), want)


def check_quantise(convert, name):
    kind = GGMLQuantizationType[name]
    values = values_of(max(32, GGML_QUANT_SIZES[kind][0]))
    with numpy.errstate(all="ignore"):
        want = quantize(values, kind).view(numpy.uint8)
    got = convert("quantise", name, values, dtype=numpy.uint8)
    check(f"quantise {name}", got, want)
    # Quantising the values of blocks gives the same values.
    again = convert("dequantise", name, got, dtype=numpy.float32)
    if name in ("F32", "F16", "BF16", "MXFP4"):
        twice = convert("quantise", name, again, dtype=numpy.uint8)
        check(f"quantise {name} twice", convert("dequantise", name, twice, dtype=numpy.float32) + 0.0, again + 0.0)


def check_mxfp4_pairs(convert):
    blocks = random.integers(0, 256, (BLOCKS, 16), dtype=numpy.uint8)
    scales = random.integers(0, 255, BLOCKS, dtype=numpy.uint8)
    scales[:255] = numpy.arange(255)
    nibbles = numpy.stack([blocks & 15, blocks >> 4], axis=-1).reshape(BLOCKS, 32)
    with numpy.errstate(over="ignore"):
        want = numpy.ldexp(FLOAT4[nibbles], scales[:, None].astype(numpy.int32) - 127)
    got = convert("mxfp4_pairs", blocks, scales, dtype=numpy.float32)
    check("mxfp4_pairs", got + 0.0, want + 0.0)


def check_f8_e4m3(convert):
    for rows, columns in ((1, 1), (128, 256), (130, 257), (300, 100)):
        elements = random.integers(0, 256, (rows, columns), dtype=numpy.uint8)
        elements.ravel()[: min(256, elements.size)] = numpy.arange(256)[: elements.size]
        scales = random.normal(0, 1, (-(-rows // 128), -(-columns // 128))).astype(numpy.float32)
        values = torch.from_numpy(elements).view(torch.float8_e4m3fn).to(torch.float32).numpy()
        want = values * scales.repeat(128, axis=0).repeat(128, axis=1)[:rows, :columns]
        got = convert("f8_e4m3", columns, elements, scales, dtype=numpy.float32)
        check(f"f8_e4m3 {rows} x {columns}", got, want)


def main(program):
    with tempfile.TemporaryDirectory() as directory:
        convert = Converter(program, directory)
        for name in READ:
            check_dequantise(convert, name)
        for name in WRITTEN:
            check_quantise(convert, name)
        check_mxfp4_pairs(convert)
        check_f8_e4m3(convert)
    print(f"{len(READ)} types read, {len(WRITTEN)} written, MXFP4 in pairs and F8_E4M3: {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(sys.argv[1])
