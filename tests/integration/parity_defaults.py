# SPDX-License-Identifier: Apache-2.0
"""A config.json that says nothing but its model_type means what transformers' config class means: with every default written out,
the graph is the same.

usage: parity_defaults.py BINARY
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import pangu_ultra_moe  # noqa: E402

# What a class leaves open, or where its defaults do not make a model.
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
}


def families():
    """The model types that the sources define."""
    found = set()
    for source in (ROOT / "src/model/families").glob("*.cpp"):
        found |= set(re.findall(r'\.model_type = "(\w+)"', source.read_text()))
    return sorted(found)


def graph(binary, folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    command = [binary, "plan", folder, "--dump", folder / "dump", "--train.micro_batch_size", "1", "--data.sequence_length", "8"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    graphs = sorted((folder / "dump").rglob("*.ir"))
    if not graphs:
        raise SystemExit(f"{folder.name}: {done.stderr}")
    return graphs[0].read_text().splitlines()


def every_default(name, config):
    if name == "pangu_ultra_moe":
        return pangu_ultra_moe.DEFAULTS | config
    return transformers.AutoConfig.for_model(name, **config).to_dict()


def main():
    failures = []
    names = families()
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            config = {"num_hidden_layers": 4, **NEEDED.get(name, {})}
            full = every_default(name, config)
            folder = pathlib.Path(scratch)
            want = graph(sys.argv[1], folder / f"{name}.full", full)
            got = graph(sys.argv[1], folder / f"{name}.lean", {"model_type": name, **config})
            for expected, found in zip(want, got):
                if expected != found:
                    failures.append(f"{name}: expected\n  {expected}\nfound\n  {found}")
                    break
            if len(want) != len(got):
                failures.append(f"{name}: expected {len(want)} lines of graph, found {len(got)}")
    print("\n".join(failures))
    print(f"{len(names)} families, {len(failures)} failures")
    return 1 if failures or not names else 0


if __name__ == "__main__":
    sys.exit(main())
