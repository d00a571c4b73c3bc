#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of an adapted transformers model against the same model as it is: forward, loss, backward, clipping and AdamW.

    adapt.py [--models bench/yardsticks/moe_coarse ...] [--variants NAME ...] [--rounds 5] [--batch 4] [--sequence 512] [--threads 2]

Parameters are float32, arithmetic is bf16 by autocast. (grouped_mm of torch computes in float32 there, as its weights are.)
"backend" is the model as it is under torch.compile(backend="anabatic"), with our AdamW; "backend+apart" is the same without regions.
Every variant is a process of its own; they take turns, a step each. It prints the median step, its ratio to the peers' best,
and the peak of resident memory. A name may end in +passive: OMP_WAIT_POLICY=PASSIVE stands in its environment.

With --ops it times anabatic.torch.ops.moe_experts, forward and backward, in turn with the engine's own layer (anabatic bench moe),
and what a call of a small operator adds to torch's.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
SETTLE_SECONDS = 0.1  # spinning threads of the process before go to sleep
PEERS = ("eager", "grouped_mm", "eager+compile", "grouped_mm+compile")
OURS = ("adapt", "adapt+backend", "backend", "backend+apart")


def make_step(options, words):
    """One training step of a variant, which returns its loss."""
    import torch
    import transformers
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).train()
    has_experts = any(hasattr(config, key) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
    is_ours = words[0] in ("adapt", "backend")
    if is_ours:
        import anabatic.torch
    if words[0] == "adapt":
        begin = time.monotonic()
        report = anabatic.torch.adapt(model)
        print(f"adapt took {time.monotonic() - begin:.1f} s; {sum(row.share for row in report.rows if row.adapted):.0%} of the FLOPs")
    elif has_experts and not is_ours:
        model.set_experts_implementation(words[0])
    if is_ours:
        optimizer = anabatic.torch.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, max_norm=1.0)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(tokens):
        return model(input_ids=tokens, labels=tokens).loss

    if words[0] == "backend":
        loss_of = torch.compile(loss_of, backend="anabatic", options={"fusions": {"region": "off" if "apart" in words else "on"}})
    elif "compile" in words or "backend" in words:
        model.forward = torch.compile(model.forward, **({"backend": "anabatic"} if "backend" in words else {}))
    tokens = torch.randint(0, config.vocab_size, (options.batch, options.sequence))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(tokens)
        loss.backward()
        if not is_ours:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def serve(options):
    """A step for each line of standard input; its seconds, loss and the peak so far as a line of output."""
    with contextlib.redirect_stdout(sys.stderr):
        step = make_step(options, options.serve.split("+"))
        for _ in range(2):
            step()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        loss = step()
        seconds = time.monotonic() - begin
        status = pathlib.Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        print(json.dumps({"seconds": seconds, "loss": loss, "peak": peak}), flush=True)


class Variant:
    def __init__(self, options, model, name):
        environment = {key: value for key, value in os.environ.items() if key not in UNSET}
        word = name.removesuffix("+passive")
        if word != name:
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        command = [sys.executable, __file__, "--serve", word, "--model", model, "--batch", options.batch, "--sequence", options.sequence,
                   "--threads", options.threads]
        self.name = name
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        if not self.process.stdout.readline():
            sys.exit(f"adapt.py: {name} ended with exit code {self.process.wait()}")
        self.seconds, self.peak, self.loss = [], 0, None

    def round(self):
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = json.loads(self.process.stdout.readline())
        self.seconds.append(line["seconds"])
        self.peak, self.loss = line["peak"], line["loss"]


def compare(options, model):
    variants = [Variant(options, model, name) for name in options.variants]
    for _ in range(options.rounds):
        for variant in variants:
            variant.round()
    for variant in variants:
        variant.process.kill()
    peers = [variant for variant in variants if variant.name.removesuffix("+passive") in PEERS]
    best = min((statistics.median(variant.seconds) for variant in peers), default=float("nan"))
    eager = min((variant.peak for variant in peers if "compile" not in variant.name), default=float("nan"))
    print(f"{pathlib.Path(model).name}: {options.batch} x {options.sequence} tokens, {options.threads} threads")
    for variant in variants:
        median = statistics.median(variant.seconds)
        print(f"  {variant.name:<28} {median:7.3f} s, {best / median:5.2f} x the peers' best, peak {variant.peak * 1e-9:5.2f} GB "
              f"({variant.peak / eager:4.2f} of eager), loss {variant.loss:.4f}", flush=True)


def compare_ops(options):
    import torch
    from anabatic.torch import ops
    torch.set_num_threads(options.threads)
    for name, (experts, top_k, hidden, inner) in {"moe_coarse": (8, 2, 512, 1536), "moe_fine": (64, 8, 512, 256)}.items():
        tokens = options.batch * options.sequence
        command = [ROOT / "build/release/anabatic", "bench", "moe", "--serve", "--device.threads", options.threads, "--train.precision", "bf16",
                   "--tokens", tokens, "--experts", experts, "--top_k", top_k, "--hidden", hidden, "--intermediate", inner]
        engine = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        engine.stdout.readline()
        torch.manual_seed(0)
        x = torch.randn(tokens, hidden, requires_grad=True)
        gate_up = (torch.randn(experts, 2 * inner, hidden) / hidden**0.5).requires_grad_()
        down = (torch.randn(experts, hidden, inner) / inner**0.5).requires_grad_()
        index = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
        weights = torch.rand(tokens, top_k, requires_grad=True)
        leaves = (x, gate_up, down, weights)

        def run():
            with torch.autocast("cpu", torch.bfloat16):
                out = ops.moe_experts(x, gate_up, down, index, weights)
            out.backward(torch.ones_like(out))
            for leaf in leaves:
                leaf.grad = None

        run(), run()
        ratios = []
        for _ in range(options.rounds):
            engine.stdin.write("\n")
            engine.stdin.flush()
            own = json.loads(engine.stdout.readline())
            time.sleep(SETTLE_SECONDS)
            begin = time.monotonic()
            run()
            ours = time.monotonic() - begin
            ratios.append((own["seconds"]["total"] / ours, own["seconds"]["total"], ours))
            time.sleep(SETTLE_SECONDS)
        engine.kill()
        ratio, own, ours = sorted(ratios)[len(ratios) // 2]
        print(f"{name}: experts, forward and backward: engine {own * 1e3:.1f} ms, operator {ours * 1e3:.1f} ms: {100 * ratio:.0f} % of the engine's speed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[str(ROOT / f"bench/yardsticks/{name}") for name in ("moe_coarse", "moe_fine", "dense")])
    parser.add_argument("--variants", nargs="+", default=["grouped_mm+passive", "grouped_mm+compile+passive", "adapt", "adapt+passive"],
                        help=f"of {', '.join((*PEERS, *OURS))}, each also with +passive")
    parser.add_argument("--ops", action="store_true", help="the experts alone, against the engine's own layer")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    for name, value in (("batch", 4), ("sequence", 512), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    if options.ops:
        compare_ops(options)
        return
    for model in options.models:
        compare(options, model)


if __name__ == "__main__":
    main()
