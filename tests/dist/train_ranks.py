#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mpirun anabatic train`: bits of ranks as threads, signals, errors that are told once, ranks that die.

usage: train_ranks.py MPIRUN ANABATIC [--kills NUMBER | --ranks NUMBER]
--kills: that many, at random points, and nothing else; --ranks: bits, methods and resume of so many, and nothing else

ANABATIC_SANITIZED in the environment: memory has a sanitizer's, too, and is not compared with the plan.
"""
import glob
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

MPIRUN, ANABATIC = sys.argv[1:3]
NUM_KILLS = int(sys.argv[4]) if sys.argv[3:4] == ["--kills"] else None
NUM_RANKS = int(sys.argv[4]) if sys.argv[3:4] == ["--ranks"] else 2
VOCABULARY = 97
MODEL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": VOCABULARY, "hidden_size": 16,
    "intermediate_size": 1100, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def write_tokens(prefix):
    """Documents of a rule that a model can learn, in Megatron's indexed form."""
    documents = []
    for first in range(60):
        tokens = [first]
        while len(tokens) < 10 + first % 30:
            tokens.append((tokens[-1] * 3 + 1) % VOCABULARY)
        documents.append(tokens)
    with open(prefix + ".bin", "wb") as data:
        for tokens in documents:
            data.write(struct.pack(f"<{len(tokens)}H", *tokens))
    sizes = [len(tokens) for tokens in documents]
    places = [2 * sum(sizes[:i]) for i in range(len(sizes))]
    with open(prefix + ".idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        index.write(struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(places)}q", *places))
        index.write(struct.pack(f"<{len(sizes) + 1}q", *range(len(sizes) + 1)))


class Folder:
    def __init__(self, path, **fields):
        self.path = path
        os.makedirs(f"{path}/model")
        with open(f"{path}/model/config.json", "w", encoding="utf-8") as config:
            json.dump({**MODEL, **fields}, config)
        write_tokens(f"{path}/train")

    def arguments(self, output, *more):
        return [ANABATIC, "train", "--model.path", f"{self.path}/model", "--model.init", "random", "--data.train", f"{self.path}/train",
                "--data.sequence_length", "16", "--train.micro_batch_size", "2", "--train.output", f"{self.path}/{output}",
                "--train.steps", "8", "--optimizer.warmup_steps", "2", "--device.threads", "1", *more]

    def states(self, output):
        with open(f"{self.path}/{output}/latest", encoding="utf-8") as latest:
            name = latest.read().strip()
        files = {}
        for file in glob.glob(f"{self.path}/{output}/{name}/*.safetensors"):
            with open(file, "rb") as states:
                files[os.path.basename(file)] = states.read()
        return name, files

    def last_metrics(self, output, rank=0):
        name = f"metrics.rank-{rank}.jsonl" if rank > 0 else "metrics.jsonl"
        with open(f"{self.path}/{output}/{name}", encoding="utf-8") as lines:
            return json.loads(lines.readlines()[-1])

    def has_lock(self, output):
        return os.path.exists(f"{self.path}/{output}/run.lock")


def under_mpirun(num_ranks, command, *options):
    return [MPIRUN, *options, "-n", str(num_ranks), *command]


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


def expect(claim, what, text):
    if not claim:
        raise SystemExit(f"expected {what}; got:\n{text}")


def train(command):
    code, text = run(command)
    expect(code == 0, "a run that ends well", text)
    return text


def check_bits(folder, *more):
    name = "-".join(("bits", *more[1::2]))
    ranks = str(NUM_RANKS)
    train(folder.arguments(f"{name}-threads", "--parallel.local_ranks", ranks, "--device.threads", ranks, *more))
    text = train(under_mpirun(NUM_RANKS, folder.arguments(f"{name}-processes", *more)))
    expect(text.count("trained steps 1 to 8") == 1, "one console", text)
    expect(folder.states(f"{name}-processes") == folder.states(f"{name}-threads"), "the bits of ranks as threads", text)
    return f"{name}-processes"


def measured(folder, mpi_share):
    """As if MPI's own collectives took such a share of the time of ordered messages."""
    if not os.path.isdir(f"{os.environ['XDG_CACHE_HOME']}/anabatic"):
        train(under_mpirun(NUM_RANKS, [ANABATIC, "bench", "exchange", "--mib", "1", "--rounds", "1"]))
    (name,) = [name for name in os.listdir(f"{os.environ['XDG_CACHE_HOME']}/anabatic") if name.startswith("exchanges-")]
    path = f"{os.environ['XDG_CACHE_HOME']}/anabatic/{name}"
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    for row in content["measured"]:
        row["mpi_seconds"] = mpi_share * row["ordered_seconds"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def check_methods(folder, like, *more):
    """MPI's own collectives: two terms have one sum, whoever adds them, and more repeat theirs. A resume keeps who it was. All begin with
    too little room for rows of experts, and plan again."""

    def arguments(output):
        return folder.arguments(output, "--parallel.exchange", "mpi", "--parallel.reduction", "fast", "--parallel.expert_capacity", "1",
                                *more)

    measured(folder, 0.5)
    text = train(under_mpirun(NUM_RANKS, arguments("methods")))
    expect("rows come to the experts of one rank" in text, "a plan with more room", text)
    if NUM_RANKS > 2:
        like = "methods-again"
        train(under_mpirun(NUM_RANKS, arguments(like)))
    expect(folder.states("methods") == folder.states(like), f"the bits of {like}", "others")
    with open(f"{folder.path}/methods/plan.txt", encoding="utf-8") as plan:
        text = plan.read()
    for row in ("all_reduce .*; mpi: measured, 2.00 x", "exchange_rows .*; mpi: parallel.exchange: mpi"):
        expect(re.search(row, text), row, text)
    measured(folder, 2)
    text = train(under_mpirun(NUM_RANKS, [*arguments("methods"), "--train.steps", "9"]))
    expect("keep the method of the checkpoint" in text, "methods that stay", text)


def check_resume(folder):
    """One rank goes on from four steps of several processes, and these from six of it, with as many samples a step and equal bits."""
    constant = ("--optimizer.schedule", "constant")
    train(under_mpirun(NUM_RANKS, folder.arguments("whole", *constant)))
    train(under_mpirun(NUM_RANKS, folder.arguments("resumed", "--train.steps", "4", *constant)))
    text = train(folder.arguments("resumed", "--train.steps", "6", *constant))
    expect(f"train.gradient_accumulation_steps is {NUM_RANKS} instead of 1" in text, "as many samples a step", text)
    train(under_mpirun(NUM_RANKS, folder.arguments("resumed", *constant)))
    expect(folder.states("resumed") == folder.states("whole"), "the bits of a run that never stopped", folder.states("resumed")[0])


def check_memory(path):
    """The predicted peak is within 2 % of the measured one: of each process, and of one with ranks as threads."""
    folder = Folder(path, vocab_size=20000, hidden_size=128)
    more = ("--train.precision", "bf16", "--train.steps", "2", "--parallel.expert", "2")
    train(folder.arguments("threads", "--parallel.local_ranks", "2", "--device.threads", "2", *more))
    train(under_mpirun(2, folder.arguments("processes", *more)))
    for output, rank in (("threads", 0), ("processes", 0), ("processes", 1)):
        planned = folder.last_metrics(output)["planned_memory_bytes"]
        peak = folder.last_metrics(output, rank)["peak_memory_bytes"]
        expect(abs(peak - planned) < planned / 50, "the predicted peak within 2 %",
               f"{output}, rank {rank}: {planned} bytes predicted, {peak} measured")


def wait_for_step(process, step=1):
    for line in process.stdout:
        if line.startswith(f"step {step}/"):
            return
    expect(False, "a step", process.stderr.read())


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_signal(folder, name, send):
    process = start(under_mpirun(2, folder.arguments(name, "--train.steps", "1000000", "--train.log_every", "1")))
    wait_for_step(process)
    send(process)
    out, error = process.communicate(timeout=60)
    expect(process.returncode == 0, "a run that saves and ends well", out + error)
    expect(folder.states(name)[0] > "step-00000000" and not folder.has_lock(name), "a checkpoint", out + error)


def terminate_each(process):
    """As a scheduler does."""
    for child in children_of(process):
        os.kill(child, signal.SIGTERM)


def check_refusals(folder):
    code, text = run(under_mpirun(2, folder.arguments("refused", "--parallel.local_ranks", "3")))
    expect(code != 0 and text.count("a process of a launcher is one rank") >= 1, "a refusal", text)
    code, text = run(under_mpirun(2, folder.arguments("diverges", "--optimizer.learning_rate", "1000000", "--optimizer.warmup_steps", "0")))
    expect(code != 0 and text.count("error:") == 1 and "other ranks hold parts of it" in text, "one error", text)


def children_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as children:
        return [int(child) for child in children.read().split()]


KILLED_RUN = ("--train.steps", "30", "--train.save_every", "4", "--train.log_every", "1")


def check_death(folder, output, victim, step, delay, *options):
    """A rank dies. Without options the launcher ends the other with SIGTERM, and kills it a second later."""
    process = start(under_mpirun(2, folder.arguments(output, *KILLED_RUN), *options))
    wait_for_step(process, step)
    children = children_of(process)
    expect(len(children) == 2, "two processes", str(children))
    time.sleep(delay)
    os.kill(children[victim], signal.SIGKILL)
    begin = time.monotonic()
    _, error = process.communicate(timeout=60)
    expect(time.monotonic() - begin < 5, "an end within five seconds", error)
    expect(options or process.returncode != 0, "an error", error)
    expect(re.search(rf"error: .*rank {victim} \(.*process {children[victim]}", error), f"rank {victim} to be named", error)
    expect(error.count("error: ") == 1, "one error", error)


def check_deaths(folder, number):
    """At random points of steps and saves. The survivor goes on to the bits of a run in which nobody died."""
    alone = (*KILLED_RUN, "--train.gradient_accumulation_steps", "2", "--train.gradient_leaves", "2")
    train(folder.arguments("alive", *alone))  # the leaves of two ranks
    points = random.Random(5)
    for kill in range(number):
        victim, step, delay = kill % 2, points.randint(1, 25), points.uniform(0, 0.05)
        output = f"death-{kill}"
        options = ("--enable-recovery",) if kill % 4 == 0 else ()
        check_death(folder, output, victim, step, delay, *options)
        train(folder.arguments(output, *alone))
        expect(folder.states(output) == folder.states("alive"), "the bits of a run in which nobody died",
               f"rank {victim} died after step {step} and {delay:.3f} s")


def check_death_in_a_save(folder, victim):
    """The checkpoint before stays whole, and the run goes on from it."""
    output = f"save-{victim}"
    process = start(under_mpirun(2, folder.arguments(output, "--train.steps", "1000000", "--train.save_every", "1"), "--enable-recovery"))
    while not os.path.exists(f"{folder.path}/{output}/latest"):
        expect(process.poll() is None, "a checkpoint", "")
        time.sleep(0.01)
    children = children_of(process)
    while not glob.glob(f"{folder.path}/{output}/incomplete-checkpoint/*.partial"):
        expect(process.poll() is None, "a save", "")
    os.kill(children[victim], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    expect(re.search(rf"error: .*rank {victim} \(.*process {children[victim]}", error), f"rank {victim} to be named", error)
    step = int(folder.states(output)[0].split("-")[1])
    text = train(under_mpirun(2, folder.arguments(output, "--train.steps", str(step + 2))))
    expect("resuming from" in text and "damaged" not in text, "a whole checkpoint", text)


def main():
    with tempfile.TemporaryDirectory() as path:
        os.environ["XDG_CACHE_HOME"] = f"{path}/cache"
        folder = Folder(path)
        if NUM_KILLS is not None:
            check_deaths(folder, NUM_KILLS)
            return
        check_bits(folder)
        shared = ("--parallel.expert", str(NUM_RANKS), "--data.validation", f"{path}/train")
        check_methods(folder, check_bits(folder, *shared), *shared)
        check_resume(folder)
        if NUM_RANKS != 2:
            return
        if "ANABATIC_SANITIZED" not in os.environ:
            check_memory(f"{path}/memory")
        check_signal(folder, "signal", lambda process: process.send_signal(signal.SIGUSR1))
        check_signal(folder, "terminated", terminate_each)
        check_refusals(folder)
        check_deaths(folder, 5)
        for victim in (0, 1):
            check_death_in_a_save(folder, victim)


main()
