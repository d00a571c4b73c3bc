#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/ablation.py against a binary that only pretends: rows, ratios, bits, refusals, the page, and the chart made from it."""
import json
import pathlib
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import chart  # noqa: E402

# Steps take 1 s, with fuse_rope off 1.5 s. Off, fuse_qkv changes losses and new_pass a moment; dead_code changes nothing; fuse_gate_up is refused.
FAKE = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
off = {{word[10:] for word, value in zip(words, words[1:]) if word.startswith("--fusions.") and value == "off"}}
def value(name):
    return words[words.index(name) + 1]
if words[0] == "--version":
    print("anabatic fake")
elif "--help" in words:
    for name in ("fuse_gate_up", "fuse_qkv", "fuse_rope", "dead_code", "new_pass"):
        print(f"  --fusions.{{name}}  boolean (on | off), default on")
elif words[0] == "plan":
    if off == {{"fuse_gate_up"}}:
        print("error: [config] 1 problem:\\n  no room", file=sys.stderr)
        sys.exit(3)
    folder = pathlib.Path(value("--compiler.dump")) / "training"
    folder.mkdir(parents=True)
    for name in ("plan.txt", "program.txt"):
        (folder / name).write_text(str(sorted(off - {{"dead_code"}})) + str("--compiler.trivial_planners" in words))
    print(json.dumps({{"peak_bytes": 1000, "recompute": [], "table": [], "optimizer_state": {{"tier": "memory"}}}}))
elif words[0] == "train":
    folder = pathlib.Path(value("--train.output")) / "step-00000002"
    folder.mkdir(parents=True)
    loss = 2.5 if "fuse_qkv" in off else 2
    lines = [json.dumps({{"loss": loss, "grad_norm": 1, "peak_memory_bytes": 900 + len(off)}})] * 2
    (folder.parent / "metrics.jsonl").write_text("\\n".join(lines))
    (folder / "checksums.json").write_text(json.dumps({{"files": {{"config.json": {{"content": "1"}}, "training_state.safetensors": {{
        "tensors": {{"w": "1", "moment": "2" if "new_pass" in off else "1"}}}}}}}}))
else:
    print(json.dumps({{"cpu": "a cpu", "threads": 2, "precision": "bf16", "parts": [{{"flops": 50}}]}}), flush=True)
    for line in sys.stdin:
        seconds = 1.5 if "fuse_rope" in off else 1
        print(json.dumps({{"peak_flops_per_second": 100, "copy_bytes_per_second": 10, "seconds": {{"total": seconds}}}}), flush=True)
"""


def ablation(*arguments):
    done = subprocess.run([sys.executable, str(BENCH / "ablation.py"), *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def expect(condition, text):
    if not condition:
        sys.exit(f"expected otherwise:\n{text}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        binary, model, kept = folder / "fake", folder / "dense", folder / "results.json"
        binary.write_text(FAKE.format(python=sys.executable))
        binary.chmod(0o755)
        model.mkdir()
        (model / "config.json").write_text('{"vocab_size": 100}')
        places = ("--directory", str(folder / "scratch"), "--models", str(model), "--json", str(kept))
        code, text = ablation("--binary", str(binary), *places, "--rounds", "2")
        expect(code == 1 and "no reason is known: dense: new_pass: differ: 1 of 2 tensors, no loss" in text, text)
        rows = {row["name"]: row for row in json.loads(kept.read_text())["models"]["dense"]["rows"]}
        expect(rows["fuse_rope"]["ratios"] == [1.5, 1.5] and rows["fuse_rope"]["bits"] == "equal", rows)
        expect(rows["fuse_qkv"]["bits"] == "differ: 0 of 2 tensors, losses by 2e-01 from step 1", rows)
        expect(rows["fuse_gate_up"]["refused"] == "[config] 1 problem: no room" and rows["dead_code"]["same_as"] == "all on", rows)
        ladder = [row["name"] for row in rows.values() if row["kind"] == "ladder"]
        expect(ladder == ["+ products of one input joined", "+ norms with sums, clean-up", "+ new_pass", "+ planners of order and memory"], ladder)
        expect(rows[ladder[-1]]["same_as"] == "all on" and rows[ladder[-2]]["same_as"] == "compiler.trivial_planners: true", rows)

        code, text = ablation("--from", str(kept), "--markdown")
        expect("the step is at 50 % of the bf16 peak" in text and "| `fuse_rope` | 1.500x | 0.000 GB (1.001x) | 0.000 GB | equal |" in text, text)
        expect("| `fuse_gate_up` | refused: `[config] 1 problem: no room` | | | |" in text, text)
        expect("The program is the same without `dead_code`, `compiler.pack_transposed: false`." in text, text)
        expect("| `new_pass` | **no reason is known** |" in text, text)
        expect("| all off | 1.50x | 1.01x |" in text and "| + planners of order and memory | 1.00x | 1.00x |" in text, text)

        chart.LADDER = folder / "ablation.md"
        chart.LADDER.write_text(text)
        models, table = chart.ladder_rows()
        drawn = chart.ladder_chart()
        expect(models == ["dense"] and len(table) == 5 and drawn.count(">1.50x<") == 1 and drawn.count(">1.01x<") == 1, drawn)

        code, text = ablation("--models", str(model))
        expect(code == 2 and "--directory is needed" in text, text)
    print("ablation: as promised")


if __name__ == "__main__":
    main()
