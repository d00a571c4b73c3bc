#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of an adapted transformers model against the same model as it is: forward, loss, backward, clipping and AdamW.

    adapt.py [--models bench/yardsticks/moe_coarse ...] [--variants NAME ...] [--rounds 5] [--batch 4] [--sequence 512] [--threads 2]

Parameters are float32, arithmetic is bf16 by autocast. (grouped_mm of torch computes in float32 there, as its weights are.)
"backend" is the model as it is under torch.compile(backend="anabatic"), with our AdamW; "backend+apart" is the same without regions.
Every variant is a process of its own; they take turns, a step each. It prints the median step, its ratio to the peers' best,
and the peak of resident memory. A name may end in +passive: OMP_WAIT_POLICY=PASSIVE stands in its environment. With +kept before
it glibc keeps freed memory, as adapt has it unless +returned is there. Ours may have
+backend (our back end of torch.compile), +inductor (which gives the rest to torch's), +packings (AdamW keeps them) and +own (our layers run on a team of their own, not on
torch's threads). With --accumulation N a step has N micro-batches.

With --ops it times anabatic.torch.ops.moe_experts, forward and backward, in turn with the engine's own layer (anabatic bench moe).
With --teams it times adapted steps, and small products of torch and of ours in turn, on both teams under both policies.
With --profile it prints where the time of the variants' steps goes; they do not take turns.
"""
import argparse
import contextlib
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

import served

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIXED = 200  # pairs of small products in a step of them
PEERS = ("eager", "grouped_mm", "eager+compile", "grouped_mm+compile")
OURS = ("adapt", "adapt+backend", "backend", "backend+apart")
TEAMS = ("", "+own", "+passive", "+own+passive")


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
        report = anabatic.torch.adapt(model, keep_memory="returned" not in words)
        print(f"adapt took {time.monotonic() - begin:.1f} s; {sum(row.share for row in report.rows if row.adapted):.0%} of the FLOPs")
    elif has_experts and not is_ours:
        model.set_experts_implementation(words[0])
    if is_ours:
        optimizer = anabatic.torch.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, max_norm=1.0,
                                         keep_packings="packings" in words)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(tokens):
        return model(input_ids=tokens, labels=tokens).loss

    rest = {"rest": "inductor" if "inductor" in words else "eager"}
    if words[0] == "backend":
        loss_of = torch.compile(loss_of, backend="anabatic", options={**rest, "fusions": {"region": "off" if "apart" in words else "on"}})
    elif "compile" in words or "backend" in words:
        model.forward = torch.compile(model.forward, **({"backend": "anabatic", "options": rest} if "backend" in words else {}))
    tokens = torch.randint(0, config.vocab_size, (options.batch, options.sequence))

    def step():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(options.accumulation):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(tokens) / options.accumulation
            loss.backward()
        if not is_ours:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def make_mix(options):
    """Small products of torch and of ours in turn, of 0.1 to 0.5 ms each."""
    import torch
    from anabatic.torch import ops
    torch.set_num_threads(options.threads)
    a, x, weight = torch.randn(192, 192), torch.randn(256, 512), torch.randn(512, 512)

    @torch.no_grad()
    def step():
        for _ in range(MIXED):
            product = a @ a
            ops.linear(x, weight)
        return product.sum().item()

    return step


def serve(options):
    """A step for each line of standard input; its seconds, loss and the peak so far as a line of output."""
    words = options.serve.split("+")
    if "own" in words:
        for part in ("_register", "optim"):
            importlib.import_module(f"anabatic.torch.{part}").loaded_openmp = lambda: ""
    with contextlib.redirect_stdout(sys.stderr):
        step = make_mix(options) if words[0] == "mix" else make_step(options, words)
        for _ in range(2):
            step()
    if options.profile:
        import adapt_profile
        adapt_profile.print_profile(step, options.rounds)
        return
    served.serve(step)


def command_of(options, model, name, *more):
    """The command of a variant's process, and what its environment adds."""
    word = name.removesuffix("+passive")
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} if word != name else {}
    if "+kept" in word:
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
    command = [sys.executable, __file__, "--serve", word, "--model", model, *more]
    for key in ("batch", "sequence", "threads", "accumulation", "rounds"):
        command += [f"--{key}", getattr(options, key)]
    return command, environment


def measured(options, model, names):
    """Variants that have taken turns."""
    variants = [served.Served(name, *command_of(options, model, name)) for name in names]
    for _ in range(options.rounds):
        for variant in variants:
            variant.round()
    for variant in variants:
        variant.process.kill()
    return variants


def compare(options, model):
    variants = measured(options, model, options.variants)
    peers = [variant for variant in variants if variant.name.removesuffix("+passive").removesuffix("+kept") in PEERS]
    best = min((statistics.median(variant.seconds) for variant in peers), default=float("nan"))
    eager = min((variant.peak for variant in peers if "compile" not in variant.name), default=float("nan"))
    print(f"{pathlib.Path(model).name}: {options.batch} x {options.sequence} tokens, {options.threads} threads")
    for variant in variants:
        median = statistics.median(variant.seconds)
        print(f"  {variant.name:<28} {median:7.3f} s, {best / median:5.2f} x the peers' best, peak {variant.peak * 1e-9:5.2f} GB "
              f"({variant.peak / eager:4.2f} of eager), loss {variant.loss:.4f}", flush=True)


def compare_teams(options, model):
    print(f"{pathlib.Path(model).name}: {options.batch} x {options.sequence} tokens, {options.threads} threads")
    for what, count in (("adapt", 1), ("mix", MIXED)):
        for variant in measured(options, model, [what + team for team in TEAMS]):
            seconds = sorted(variant.seconds)
            print(f"  {variant.name:<28} {statistics.median(seconds) / count * 1e3:9.3f} ms, {seconds[0] / count * 1e3:9.3f} to "
                  f"{seconds[-1] / count * 1e3:9.3f}", flush=True)


def profile(options, model):
    for name in options.variants:
        print(f"{pathlib.Path(model).name}, {name}: {options.batch} x {options.sequence} tokens, {options.threads} threads", flush=True)
        if served.start(*command_of(options, model, name, "--profile")).wait():
            sys.exit(f"adapt.py: {name} failed")


def compare_ops(options):
    import torch
    from anabatic.torch import keep_memory, ops
    torch.set_num_threads(options.threads)
    keep_memory()  # as adapt does
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
            time.sleep(served.SETTLE_SECONDS)
            begin = time.monotonic()
            run()
            ours = time.monotonic() - begin
            ratios.append((own["seconds"]["total"] / ours, own["seconds"]["total"], ours))
            time.sleep(served.SETTLE_SECONDS)
        engine.kill()
        ratio, own, ours = sorted(ratios)[len(ratios) // 2]
        print(f"{name}: experts, forward and backward: engine {own * 1e3:.1f} ms, operator {ours * 1e3:.1f} ms: {100 * ratio:.0f} % of the engine's speed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[str(ROOT / f"bench/yardsticks/{name}") for name in ("moe_coarse", "moe_fine", "dense")])
    parser.add_argument("--variants", nargs="+", default=["grouped_mm+passive", "grouped_mm+compile+passive", "adapt", "adapt+passive"],
                        help=f"of {', '.join((*PEERS, *OURS))}, with what may follow")
    parser.add_argument("--ops", action="store_true", help="the experts alone, against the engine's own layer")
    parser.add_argument("--teams", action="store_true", help="our team and torch's under both wait policies")
    parser.add_argument("--profile", action="store_true", help="where the time of each variant goes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    for name, value in (("batch", 4), ("sequence", 512), ("threads", 2), ("accumulation", 1), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    if options.ops:
        compare_ops(options)
        return
    for model in options.models:
        (compare_teams if options.teams else profile if options.profile else compare)(options, model)


if __name__ == "__main__":
    main()
