#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each choice of the compiler is worth: time of a step, peak memory and bits with it switched off, by itself and all together.

    ablation.py --binary build/release/anabatic --directory SCRATCH --json results.json --write PAGE
    ablation.py --from results.json --markdown        tables of earlier results, or --write PAGE; nothing runs

Rows: every pass that the binary lists under fusions, the second packings, the planners, all of it off; then the ladder, which
starts from all off and switches one group after another on, in the order of the pipeline. A pass that no group names gets a
group of its own. Three more rows switch on what saves memory and is off by default.

Each row trains once: its peak is measured, and each loss and each tensor of its checkpoint is compared with those of the row that
has all on. `anabatic bench step --serve` then times rows in rounds, --resident of them at once, each round beginning with all on.
A ratio is to the same round, and the median of rounds counts. A row with the program of an earlier one is not run again. A row
that the engine refuses is printed with the reason. The exit code is 1 where bits differ and no reason is known.

Further keys go to every row, with one value each.
"""
import argparse
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import common  # noqa: E402

from compare import machine  # noqa: E402
from frontier import choices, frame_bytes, write_tokens  # noqa: E402

YARDSTICKS = ("moe_coarse", "moe_fine", "dense")
ALL_ON, ALL_OFF = "all on", "all off"
OFF, ON, LADDER = "off", "on", "ladder"
TRIVIAL, TRANSPOSED = ["--compiler.trivial_planners", "true"], ["--compiler.pack_transposed", "false"]
# A rung of the ladder each; it stands where the first of its passes does in the pipeline.
GROUPS = (
    ("head and loss as one op", ("fuse_head_loss",)),
    ("packed weights", ("pack_weights", "panel_states", "split_parameters", "pack_again")),
    ("SwiGLU in products", ("fuse_activation",)),
    ("gather, router weight in products", ("fuse_moe_permute", "move_router_weight")),
    ("products of one input joined", ("fuse_gate_up", "fuse_qkv", "fuse_rope")),
    ("update in one pass", ("accumulate_in_gemm", "slice_optimizer", "fuse_optimizer")),
    ("norms with sums, clean-up", ("fuse_norm_residual", "common_subexpression", "dead_code")),
    ("recomputed and int8 operands in products", ("drop_kept_products", "quantize_in_product", "activation_with_gradient", "read_quantized")),
)
BUDGET = "memory.budget"
PLANNERS = "planners of order and memory"
# Why bits may differ; of all else, bits are expected to be equal.
SQUARES = "the sum of squares for the gradient norm runs in another order, in f64"
REASONS = {
    "fuse_head_loss": "the head's gradients are summed in blocks of classes and rows that the logits' own products do not have",
    "pack_weights": "`panel_states` needs it: " + SQUARES,
    "panel_states": SQUARES,
    "fuse_activation": "`move_router_weight` needs it, and rounds in other places",
    "move_router_weight": "(w · h) · wd in place of w · (h · wd): it rounds in other places",
    "fuse_gate_up": "the input gradients of both products are summed and rounded once",
    "fuse_qkv": "the input gradients of the three products are summed and rounded once",
    "accumulate_in_gemm": SQUARES,
    "optimizer.update": "gradients are clipped by the norm of the step before",
    "optimizer.state_precision": "moments are rounded to bf16",
    ALL_OFF: "the reasons of its passes",
}


@dataclasses.dataclass
class Row:
    name: str
    kind: str
    keys: list
    reason: str = ""  # why its bits may differ
    same_as: str = ""
    refused: str = ""
    chosen: str = ""  # by the planner under the budget
    planned_bytes: int = 0
    peak_bytes: int = 0
    losses: list = dataclasses.field(default_factory=list)
    tensors: dict = dataclasses.field(default_factory=dict, repr=False)
    bits: str = ""
    seconds: list = dataclasses.field(default_factory=list)
    ratios: list = dataclasses.field(default_factory=list)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(common.ROOT / "build/release/anabatic"))
    parser.add_argument("--directory", type=pathlib.Path, help="scratch folder for runs; a checkpoint takes 16 bytes a parameter")
    parser.add_argument("--models", nargs="+", default=[str(common.ROOT / "bench/yardsticks" / name) for name in YARDSTICKS])
    parser.add_argument("--rows", default="", metavar="PATTERN", help="only rows whose name this regular expression finds, and all on")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="of the run that measures the peak and compares bits")
    parser.add_argument("--rounds", type=int, default=3, help="of steps that are timed")
    parser.add_argument("--resident", type=int, default=3, help="rows in memory at once, next to all on")
    parser.add_argument("--cut", type=int, default=50, help="percent of the values at the peak that the row with a memory.budget has to save")
    parser.add_argument("--json", type=pathlib.Path, help="keeps results here, model by model; other models in it stay")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="results of an earlier run; nothing is measured")
    parser.add_argument("--markdown", action="store_true", help="print the page")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE", help="write the page, and the charts by chart.py")
    options, options.rest = parser.parse_known_args()
    if not options.source and not options.directory:
        parser.error("--directory is needed where something is measured")
    options.no_check = True  # of `bench step`; bits are compared here
    return options


def call(command):
    """Standard output, and the reason where there is none."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout, ""
    said = re.search(r"^error: (.*:\n.*|.*)", result.stderr, re.MULTILINE)
    return "", " ".join(said[1].split()) if said else f"exit code {result.returncode}"


def passes_of(binary):
    """Optional passes in the order of the pipeline, as `train --help` lists them."""
    text, refused = call([binary, "train", "--help"])
    found = re.findall(r"^ +--fusions\.(\w+) ", text, re.MULTILINE)
    if not found:
        raise SystemExit(refused or f"{binary} train --help lists no fusions")
    return found


def groups_of(passes):
    """(name, passes) in the order of the pipeline."""
    placed = {name: group for group, names in GROUPS for name in names}
    groups = {}
    for name in passes:
        groups.setdefault(placed.get(name, name), []).append(name)
    return list(groups.items())


def off(names):
    return [word for name in names for word in (f"--fusions.{name}", "off")]


def rows_of(options, passes, planned):
    """All rows but all on, whose plan this is."""
    rows = [Row(name, OFF, off([name]), REASONS.get(name, "")) for name in passes]
    rows += [Row(" ".join(keys).removeprefix("--").replace(" ", ": "), OFF, keys) for keys in (TRANSPOSED, TRIVIAL)]
    rows.append(Row(ALL_OFF, OFF, [*off(passes), *TRANSPOSED, *TRIVIAL], REASONS[ALL_OFF]))
    for key, value in (("optimizer.update", "in_backward"), ("optimizer.state_precision", "bf16")):
        rows.append(Row(f"{key}: {value}", ON, [f"--{key}", value], REASONS[key]))
    budget = str(planned["peak_bytes"] - frame_bytes(planned) * options.cut // 100)
    rows.append(Row(BUDGET, ON, ["--memory.budget", budget, "--memory.optimizer_state", "resident"]))
    rest = list(passes)
    for group, members in groups_of(passes):
        rest = [name for name in rest if name not in members]
        keys = [*off(rest), *(TRANSPOSED if "pack_weights" in rest else []), *TRIVIAL]
        rows.append(Row(f"+ {group}", LADDER, keys, REASONS[ALL_OFF] if any(name in REASONS for name in rest) else ""))
    rows.append(Row(f"+ {PLANNERS}", LADDER, []))
    return [row for row in rows if re.search(options.rows, row.name)]


def run_keys(options, row):
    """Keys of a row for every verb; the user's own come last."""
    keys = ["--model.init", "random", "--train.precision", options.precision, "--device.threads", str(options.threads),
            "--train.micro_batch_size", str(options.batch), "--data.sequence_length", str(options.sequence)]
    if "--memory.budget" not in [*row.keys, *options.rest]:
        keys += ["--memory.budget", "none"]
    return [*keys, *row.keys, *options.rest]


def plan(options, model, row):
    """The plan and a hash of the program; sets `refused` where there is none."""
    dump = options.directory / "ablation_dump"
    shutil.rmtree(dump, ignore_errors=True)
    text, row.refused = call([options.binary, "plan", str(model), "--json", *run_keys(options, row), "--compiler.dump", str(dump)])
    if row.refused:
        return None, ""
    planned = json.loads(text)
    row.planned_bytes, row.chosen = planned["peak_bytes"], choices(planned) if row.name == BUDGET else ""
    digest = hashlib.sha256()
    for name in ("plan.txt", "program.txt"):
        digest.update((dump / "training" / name).read_bytes())
    shutil.rmtree(dump)
    # Keys of the optimizer may leave the text of a program as it is, so they count too.
    return planned, digest.hexdigest() + " ".join(row.keys if row.kind == ON else [])


def train(options, model, row):
    """Fills in the peak, the losses of each step, and the checksum of each tensor of the checkpoint, which the engine wrote itself."""
    output = options.directory / "ablation_run"
    shutil.rmtree(output, ignore_errors=True)
    _, row.refused = call([options.binary, "train", "--model.path", str(model), "--data.train", str(options.directory / "ablation_tokens"),
                           "--train.output", str(output), "--train.steps", str(options.steps), *run_keys(options, row)])
    if not row.refused:
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        row.peak_bytes = lines[-1]["peak_memory_bytes"]
        row.losses = [[line[name] for name in ("loss", "aux_loss", "grad_norm") if name in line] for line in lines]
        files = json.loads((max(output.glob("step-*")) / "checksums.json").read_text())["files"]
        row.tensors = {f"{file} {name}": value for file, entry in files.items() for name, value in entry.get("tensors", {}).items()}
    shutil.rmtree(output, ignore_errors=True)


def compare_bits(row, whole):
    """How a row differs from all on: in losses, or in tensors alone."""
    if row.losses == whole.losses and row.tensors == whole.tensors:
        return "equal"
    names = {*row.tensors, *whole.tensors}
    different = sum(row.tensors.get(name) != whole.tensors.get(name) for name in names)
    tensors = f"{different} of {len(names)} tensors" if different < len(names) else "all tensors"
    distances = [abs(a[0] - b[0]) / abs(b[0]) for a, b in zip(row.losses, whole.losses)]
    if not any(distances):
        return f"differ: {tensors}, no loss"
    first = next(place for place, distance in enumerate(distances, 1) if distance)
    return f"differ: {tensors}, losses by {max(distances):.0e} from step {first}"



def serve(options, model, row):
    """The row's process of `bench step`, without the keys that only the other verbs read."""
    text, refused = call([options.binary, "bench", "step", "--help"])
    if refused:
        raise SystemExit(refused)
    known = set(re.findall(r"--([\w.-]+)", text)) - {"train.precision", "device.threads"}  # which `common` adds
    words = run_keys(options, row)
    pairs = [(name.removeprefix("--"), value) for name, value in zip(words, [*words[1:], "--"]) if name.startswith("--")]
    settings = {name: True if value.startswith("--") else value for name, value in pairs if name in known}
    return common.Anabatic(options, "step", {"model.path": str(model), "batch": options.batch, "sequence": options.sequence, **settings})


def batches_of(options, rows):
    """Rows that are in memory at once: at most --resident of them, and four fifths of what the machine has left."""
    left = 0.8 * 1024 * int(re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1))
    batches, taken = [], 0
    for row in rows:
        if not batches or len(batches[-1]) == options.resident or taken + row.planned_bytes > left:
            batches.append([])
            taken = 0
        batches[-1].append(row)
        taken += row.planned_bytes
    return batches


def open_sides(options, model, rows):
    """Processes of the rows, each after one step."""
    sides = []
    for row in rows:
        try:
            side = serve(options, model, row)
            side.round()
            sides.append((row, side))
        except SystemExit as refused:
            print(f"  {row.name}: not timed: {refused}", flush=True)
    return sides


def time_rows(options, model, rows):
    """Fills in steps and their ratios to all on, which each round begins with; that one's header and shares of the peak."""
    whole = rows[0]
    base = serve(options, model, whole)
    base.round()
    shares, flops = [], base.header["parts"][0]["flops"]
    for batch in batches_of(options, [row for row in rows[1:] if not row.refused and not row.same_as]):
        sides = open_sides(options, model, batch)
        for _ in range(options.rounds):
            time.sleep(common.SETTLE_SECONDS)
            entry = base.round()
            whole.seconds.append(entry["seconds"]["total"])
            shares.append(flops / whole.seconds[-1] / entry["peak_flops_per_second"])
            for row, side in sides:
                time.sleep(common.SETTLE_SECONDS)
                row.seconds.append(side.round()["seconds"]["total"])
                row.ratios.append(row.seconds[-1] / whole.seconds[-1])
        for row, side in sides:
            side.close()
            print(f"  {row.name}: {statistics.median(row.ratios):.3f} x the step of {ALL_ON}", flush=True)
    base.close()
    whole.ratios = [1.0]
    return base.header, shares


def measure(options, model):
    """The rows of one model as a JSON object."""
    began = time.monotonic()
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    write_tokens(options.directory / "ablation_tokens", config["vocab_size"], length=max(8192, options.batch * options.sequence))
    passes = passes_of(options.binary)
    rows, programs = [Row(ALL_ON, OFF, [])], {}
    whole = rows[0]
    for row in rows:  # which grow once the first one is planned
        planned, program = plan(options, model, row)
        if not row.refused and programs.setdefault(program, row.name) != row.name:
            row.same_as = programs[program]
        elif not row.refused:
            train(options, model, row)
            row.bits = "" if row.refused else compare_bits(row, whole)
        print(f"  {row.name}: {row.refused and 'refused: ' + row.refused or row.same_as and 'the program of ' + row.same_as or row.bits}", flush=True)
        if whole.refused:
            raise SystemExit(f"{model}: {whole.refused}")
        if row is whole:
            rows += rows_of(options, passes, planned)
    header, shares = time_rows(options, model, rows)
    by_name = {row.name: row for row in rows}
    for row in rows:
        if row.same_as:
            for field in ("refused", "peak_bytes", "losses", "bits", "seconds", "ratios"):
                setattr(row, field, getattr(by_name[row.same_as], field))
    kept = [{key: value for key, value in vars(row).items() if key != "tensors"} for row in rows]
    return {"machine": machine(header, options), "keys": options.rest, "minutes": (time.monotonic() - began) / 60,
            **{name: getattr(options, name) for name in ("batch", "sequence", "steps", "rounds")},
            "groups": groups_of(passes), "share_of_peak": statistics.median(shares) if shares else None, "rows": kept}


def label(name):
    return f"`{name}`" if re.fullmatch(r"[\w.]+(: \w+)?", name) else name


def ratio_of(row):
    """Median of the rounds, with their range where it shows."""
    median, low, high = statistics.median(row["ratios"]), min(row["ratios"]), max(row["ratios"])
    return f"{median:.3f}x" + (f" ({low:.3f} to {high:.3f})" if f"{low:.3f}" != f"{high:.3f}" else "")


def table_of(rows, whole):
    """Lines of the table of the rows that ran or were refused, and the names of those that change nothing."""
    lines, idle = ["| row | step | peak, measured | peak, planned | bits |", "|---|---|---|---|---|"], []
    for row in rows:
        if row["same_as"] == ALL_ON:
            idle.append(label(row["name"]))
        elif row["refused"]:
            lines.append(f"| {label(row['name'])} | refused: `{row['refused'].replace('|', '/')}` | | | |")
        else:
            step = ratio_of(row) if row["ratios"] else "not timed"
            name = label(row["name"]) + (f", chosen: {row['chosen']}" if row["chosen"] else "")
            lines.append(f"| {name} | {step} | {1e-9 * row['peak_bytes']:.3f} GB ({row['peak_bytes'] / whole['peak_bytes']:.3f}x) | "
                         f"{1e-9 * row['planned_bytes']:.3f} GB | {row['bits']} |")
    return lines, idle


def ladder_table(models):
    """The table that chart.py draws: step and peak of each model over those of all on."""
    first = next(iter(models.values()))["rows"]
    names = [row["name"] for row in first if row["name"] == ALL_OFF or row["kind"] == LADDER]
    lines = ["| on so far | " + " | ".join(f"`{name}` step | `{name}` peak" for name in models) + " |", "|---" * (1 + 2 * len(models)) + "|"]
    for name in names:
        cells = []
        for model in models.values():
            rows = {row["name"]: row for row in model["rows"]}
            row = rows.get(name)
            is_measured = row and row["ratios"] and row["peak_bytes"]
            whole = rows[ALL_ON]["peak_bytes"]
            cells += [f"{statistics.median(row['ratios']):.2f}x", f"{row['peak_bytes'] / whole:.2f}x"] if is_measured else ["refused"] * 2
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines if names else []


def page(results):
    """The page of docs/measurements."""
    models = results["models"]
    first = next(iter(models.values()))
    where = first["machine"]
    builds = ", ".join(dict.fromkeys(f"`{model['machine']['commit']}` of {model['machine']['date']}" for model in models.values()))
    size = f"{first['batch']} x {first['sequence']} tokens a step"
    out = ["# What each choice is worth", "",
           f"{where['threads']} threads of {where['cpu']}, {where['precision']}, {size}, without a budget.",
           f"Build {builds}. Printed by `bench/ablation.py`.", "",
           "- **Step** is the time relative to the step with all on in the same round. It is the median of "
           f"{first['rounds']} rounds.", "  Brackets hold their range. Where it is wide, the machine was disturbed and the row says nothing of time.",
           "- **Bits** compares every loss and every tensor of the checkpoint with those of all on.",
           f"  Both runs have the same seed and data, and {first['steps']} steps.",
           "- **Planned** is what `anabatic plan` predicts for the whole process.", ""]
    ladder = ladder_table(models)
    if ladder:
        out += ["## One group after another", "",
                "The first row has every optional pass off, and the simplest planners.",
                "Each row adds one group to those above it, in the order of the pipeline.",
                "Values are relative to all on. The README's chart of groups of choices is made from this table.", "", *ladder, ""]
        out += ["| group | passes |", "|---|---|", *(f"| {name} | {', '.join(map(label, members))} |" for name, members in first["groups"]),
                f"| {PLANNERS} | `compiler.trivial_planners: false` |", ""]
    for name, model in models.items():
        rows = model["rows"]
        whole, share = rows[0], model["share_of_peak"]
        table, idle = table_of([row for row in rows[1:] if row["kind"] == OFF], whole)
        out += [f"## `{name}`", "", f"All on: {1e-9 * whole['peak_bytes']:.3f} GB measured, {1e-9 * whole['planned_bytes']:.3f} GB planned"
                + (f"; the step is at {100 * share:.0f} % of the {where['precision']} peak." if share else "."), "", "Switched off:", "", *table, ""]
        if idle:
            out += ["The program is the same without " + ", ".join(idle) + ".", ""]
        table, idle = table_of([row for row in rows[1:] if row["kind"] == ON], whole)
        if len(table) > 2:
            out += ["Switched on, of what is off by default:", "", *table, ""]
        if idle:
            out += ["The program is the same with " + ", ".join(idle) + ".", ""]
    different = {}
    for model in models.values():
        for row in model["rows"]:
            if row["kind"] != LADDER and row["name"] != ALL_OFF and row["bits"].startswith("differ"):
                different[row["name"]] = row["reason"] or "**no reason is known**"
    if different:
        out += ["## Why bits differ", "",
                "Results are equal but for roundings, unless a key of the optimizer changed.",
                "One rounding changes the gradient norm, and clipping multiplies every gradient by it. So all tensors differ.", "",
                "| row | why |", "|---|---|", *(f"| {label(name)} | {reason} |" for name, reason in different.items()), ""]
    return wrapped("\n".join(out))


def wrapped(text, width=120):
    """Breaks lines of prose, which lint allows 120 characters."""
    out = []
    for line in text.splitlines():
        while len(line) > width and not line.startswith("|"):
            cut = line.rindex(" ", 0, width)
            out.append(line[:cut])
            line = ("  " if line.startswith(("- ", "  ")) else "") + line[cut + 1 :]
        out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


def main():
    options = parse_arguments()
    if options.source:
        results = json.loads(options.source.read_text())
    else:
        options.directory.mkdir(parents=True, exist_ok=True)
        is_kept = options.json and options.json.exists()
        results = json.loads(options.json.read_text()) if is_kept else {"models": {}}
        for model in options.models:
            print(f"{pathlib.Path(model).name}:", flush=True)
            results["models"][pathlib.Path(model).name] = measure(options, model)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    order = {name: place for place, name in enumerate(YARDSTICKS)}
    results["models"] = dict(sorted(results["models"].items(), key=lambda item: order.get(item[0], len(order))))
    if options.markdown:
        print(page(results))
    if options.write:
        options.write.write_text(page(results))
        subprocess.run([sys.executable, str(pathlib.Path(__file__).resolve().parent / "chart.py")], check=True)
    unexplained = [f"{name}: {row['name']}: {row['bits']}" for name, model in results["models"].items() for row in model["rows"]
                   if row["bits"].startswith("differ") and not row["reason"] and row["kind"] != LADDER]
    for line in unexplained:
        print(f"no reason is known: {line}", file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
