# SPDX-License-Identifier: Apache-2.0
"""GGUF files that the package gguf writes, read and written again here, against what its reader makes of both: keys,
their types and values, tensors and their bytes; with another alignment, and split into parts.

usage: parity_gguf.py CONVERT_BLOCKS
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize

random = numpy.random.default_rng(20240607)
failures = []


def add_keys(writer):
    writer.add_uint8("test.u8", 255)
    writer.add_int8("test.i8", -128)
    writer.add_uint16("test.u16", 65535)
    writer.add_int16("test.i16", -32768)
    writer.add_uint32("test.u32", 2**32 - 1)
    writer.add_int32("test.i32", -(2**31))
    writer.add_uint64("test.u64", 2**64 - 1)
    writer.add_int64("test.i64", -(2**63))
    writer.add_float32("test.f32", 1e-5)
    writer.add_float64("test.f64", 1e-300)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "a\n\u2581\u00e9")
    writer.add_array("test.strings", ["", "a", "\u2581b"])
    writer.add_array("test.i32s", [1, -2, 3])
    writer.add_array("test.f32s", [0.5, -1e9])
    writer.add_array("test.bools", [True, False])


def tensors():
    for name, shape in (("a.weight", (5, 64)), ("b.weight", (3, 2, 32)), ("c.weight", (7,)), ("d.weight", (1, 256))):
        values = random.normal(0, 1, shape).astype(numpy.float32)
        for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_1", "MXFP4"):
            if shape[-1] % 32 == 0 or kind in ("F32", "F16"):
                yield f"{kind}.{name}", values, GGMLQuantizationType[kind]


def write(path, alignment, split):
    writer = GGUFWriter(path, "llama", split_max_tensors=split)
    add_keys(writer)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for name, values, kind in tensors():
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def contents(paths):
    """Fields of the first file, tensors of all."""
    readers = [GGUFReader(path) for path in paths]
    fields = {name: (field.types, field.contents()) for name, field in readers[0].fields.items()
              if not name.startswith(("GGUF.", "split."))}
    found = {tensor.name: (tensor.tensor_type, tensor.shape.tolist(), tensor.data.tobytes())
             for reader in readers for tensor in reader.tensors}
    return fields, found


def check(what, got, want):
    for key in sorted(got.keys() | want.keys()):
        if got.get(key) != want.get(key):
            failures.append(f"{what}, {key}: {str(got.get(key))[:200]}, expected {str(want.get(key))[:200]}")


def main(program):
    checked = 0
    for alignment, split in ((32, 0), (8, 0), (4096, 0), (32, 5)):
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            write(directory / "in.gguf", alignment, split)
            paths = sorted(directory.glob("in*.gguf"))
            subprocess.run([program, "copy", paths[-1], directory / "out.gguf"], check=True)
            fields, found = contents([directory / "out.gguf"])
            wanted_fields, wanted = contents(paths)
            check(f"alignment {alignment}, {len(paths)} files", fields, wanted_fields)
            check(f"alignment {alignment}, {len(paths)} files", found, wanted)
            checked += len(fields) + len(found)
    print(f"{checked} keys and tensors: {len(failures)} failures")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(sys.argv[1])
