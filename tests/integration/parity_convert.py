# SPDX-License-Identifier: Apache-2.0
"""`convert` and `check manifest` on models that transformers saved: transformers loads what was written, tensor for tensor.

usage: parity_convert.py BINARY [MODEL ...]      names of tests/support/random_models.py; none: a few
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import random_models as models  # noqa: E402

FEW = ["deepseek_v3_odd", "glm4_moe_lite_odd", "granitemoe_plain"]


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def check(binary, folder, name):
    model = models.build(*models.MODELS[name]).eval()
    source, result, reference = folder / name, folder / f"{name}.out", folder / f"{name}.safetensors"
    model.save_pretrained(source, max_shard_size="60KB")
    run(sys.executable, ROOT / "tools/reference_logits.py", source, reference)
    run(binary, "convert", source, result, *(["--experts", "fused"] if models.is_moe(model.config) else []))
    run(binary, "check", "manifest", result, "--against", source, "--reference", reference)
    want = model.state_dict()
    got = transformers.AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32).state_dict()
    assert want.keys() == got.keys(), f"{name}: {sorted(want.keys() ^ got.keys())} are missing or surplus"
    for key in want:
        assert torch.equal(want[key], got[key]), f"{name}: {key} differs"
    print(f"{name}: {len(want)} tensors equal", flush=True)


def main():
    binary, chosen = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or FEW
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            check(binary, pathlib.Path(folder), name)


if __name__ == "__main__":
    main()
