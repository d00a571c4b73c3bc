#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py against binaries that only pretend: what it stores, names as slower, and returns."""
import json
import pathlib
import subprocess
import sys
import tempfile

COMPARE = pathlib.Path(__file__).resolve().parents[2] / "bench/compare.py"
FAKE = """#!{python}
import json, sys
if "--version" in sys.argv:
    print("anabatic fake")
    sys.exit()
print(json.dumps({{"kind": sys.argv[2], "precision": "bf16", "cpu": "a cpu", "threads": 2, "settings": {{}},
                   "parts": [{{"name": "total", "flops": 100, "bytes": 0}}]}}), flush=True)
for line in sys.stdin:
    seconds = {seconds} * (5 if sys.argv[2] == "{slow_kind}" else 1)
    print(json.dumps({{"peak_flops_per_second": 1000, "copy_bytes_per_second": 10, "seconds": {{"total": seconds}}}}), flush=True)
"""


def fake(folder, name, seconds, slow_kind=""):
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable, seconds=seconds, slow_kind=slow_kind))
    path.chmod(0o755)
    return str(path)


def compare(*arguments):
    done = subprocess.run([sys.executable, str(COMPARE), "--rounds", "2", *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def expect(condition, text):
    if not condition:
        sys.exit(f"expected otherwise:\n{text}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        store = folder / "results.json"
        same = fake(folder, "same", 0.2)
        code, text = compare("--binary", same, "--store", str(store), "--update")
        expect(code == 0 and "50.0 % of peak" in text, text)
        kept = json.loads(store.read_text())["a cpu, 2 threads, bf16"]
        expect(kept["machine"]["binary"] == "anabatic fake" and len(kept["cases"]) == 6, kept)
        expect(abs(kept["cases"]["optimizer"]["share"] - 0.5) < 1e-12, kept)

        code, text = compare("--binary", same, "--store", str(store))
        expect(code == 0 and "1.000 x the earlier time" in text and "slower:" not in text, text)
        code, text = compare("--binary", fake(folder, "slow", 0.2, "moe"), "--store", str(store))
        expect(code == 1 and "slower: moe coarse, 256 rows: 400.0 %" in text, text)
        expect(text.count("slower:") == 1 and json.loads(store.read_text())["a cpu, 2 threads, bf16"] == kept, text)

        code, text = compare("--binary", same, "--base", fake(folder, "base", 0.4), "--only", "gemm")
        expect(code == 0 and "geometric mean of 1 cases: 0.500" in text, text)
        code, text = compare("--binary", same, "--base", fake(folder, "fast", 0.1))
        expect(code == 1 and text.count("slower:") == 6, text)
        code, text = compare("--update")
        expect(code == 2 and "--update needs --store" in text, text)
    print("compare: as promised")


if __name__ == "__main__":
    main()
