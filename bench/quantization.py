# SPDX-License-Identifier: Apache-2.0
"""How much of what rounding costs quantization-aware training gives back: the held-out loss of a model that is trained plainly, of the
same model rounded, and of one that was trained on the grid after a delay. All begin alike and see the same samples. Bytes of the
trained weights in the export are compared with bf16. The model is that of tools/quickstart.sh, which has to have run, or a pretrained
one.

usage: quantization.py BINARY [--format q4_0] [--units experts] [--steps 400] [--delay 200] [--model PRETRAINED]
                       [--data build/quickstart/data] [--output DIR] [-- KEY VALUE ...]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def run(binary, *arguments):
    done = subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")


def checkpoint_of(output):
    return output / (output / "latest").read_text().strip()


class Model:
    """Runs of a model, with the hyperparameters of the quickstart unless keys say otherwise."""

    def __init__(self, given, output, keys):
        kind = ".jsonl" if given.model else ""  # another tokenizer than the quickstart's
        self.binary, self.output = given.binary.resolve(), output
        self.flags = {
            "--data.train": given.data.resolve() / f"train{kind}", "--data.validation": given.data.resolve() / f"validation{kind}",
            "--data.sequence_length": 256, "--train.micro_batch_size": 8, "--train.precision": "bf16",
            "--optimizer.learning_rate": 2e-3, "--optimizer.warmup_steps": 20, "--optimizer.min_learning_rate": 1e-4,
        } | dict(zip(keys[::2], keys[1::2]))  # fmt: skip

    def losses(self, name, model, steps, *more):
        """Held-out losses before and after."""
        output = self.output / name
        flags = [part for flag in self.flags.items() for part in flag]
        run(self.binary, "train", "--model.path", model, "--train.output", output, "--train.steps", steps, *flags, *more)
        lines = [json.loads(line) for line in (output / "validation.jsonl").read_text().splitlines()]
        return lines[0]["loss"], lines[-1]["loss"]


def file_bytes(path, trained):
    """Bytes in a file of these parameters, by its manifest, and of bf16 in their place."""
    manifest = json.loads((path / "anabatic.manifest.json" if path.is_dir() else pathlib.Path(f"{path}.manifest.json")).read_text())
    mine = [tensor for tensor in manifest["written"] if any(part["parameter"] in trained for part in tensor.get("parts", []))]
    elements = sum(part["count"] for tensor in mine for part in tensor["parts"])
    return sum(tensor["bytes"] for tensor in mine), 2 * elements


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--units", nargs="+", default=["experts"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--delay", type=int, default=200)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("build/quickstart/data"))
    parser.add_argument("--output", type=pathlib.Path)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, keys = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    with tempfile.TemporaryDirectory() as scratch:
        output = (given.output or pathlib.Path(scratch)).resolve()
        model = Model(given, output, keys)
        start = given.model or given.data / ".." / "model"
        first = ["--model.init", "pretrained" if given.model else "random"]
        grid = ["--quantization.enable", "true", "--quantization.format", given.format, "--quantization.units", *given.units]
        _, plain = model.losses("plain", start, given.steps, *first)
        rounded, _ = model.losses("rounded", checkpoint_of(output / "plain"), 1, *grid)
        _, aware = model.losses("aware", start, given.steps, *first, *grid, "--quantization.quant_delay", given.delay)
        checkpoint, is_gguf = checkpoint_of(output / "aware"), given.format.startswith("q")
        exported = output / ("exported.gguf" if is_gguf else "exported")
        run(given.binary, "convert", checkpoint, exported, "--format", "gguf" if is_gguf else "compressed-tensors", "--no-logits")
        trained = json.loads((checkpoint / "anabatic.quantization.json").read_text())["parameters"]
        packed, in_bf16 = file_bytes(exported, trained)
    print(f"{given.format} for {', '.join(given.units)}, {given.steps} steps, the first {given.delay} with the weights as they are")
    print(f"held-out loss   trained plainly {plain:.4f}, the same rounded {rounded:.4f}, trained on the grid {aware:.4f}")
    print(f"recovered       {100 * (rounded - aware) / (rounded - plain):.0f} % of the {rounded - plain:.4f} that rounding costs")
    print(f"bytes           {packed} in place of {in_bf16} in bf16: {100 * packed / in_bf16 - 100:.1f} %")


if __name__ == "__main__":
    main()
