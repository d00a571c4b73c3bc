#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites test files to the ops of today after ops were renamed: graphs (*.ir), plans (*.plan.txt) and case files
(tests/ops/cases/OP.txt). A second run changes nothing.

usage: rewrite_ops.py [SOURCE_DIR]

To rename an op, add a row to RENAMES. Sources are not
rewritten: a compiler or a test names them.
"""
import pathlib
import re
import sys
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rename:
    op: str
    attributes: dict = field(default_factory=dict)  # that the call gains, as graphs print them
    form: str = ""  # the words that plans print after the op's name

    def label(self):
        return f"{self.op} {self.form}".strip()


def optimizer_step(form, **attributes):
    return Rename("optimizer_step", {"rule": '"adamw"', **attributes}, f"adamw {form}".strip())


RENAMES = {
    "adamw": optimizer_step(""),
    "adamw_pack": optimizer_step("packs_both", packs='"both"'),
    "adamw_pack_transposed": optimizer_step("packs_transposed", packs='"transposed"'),
    "adamw_split": optimizer_step("split", split="true"),
    "adamw_split_pack_transposed": optimizer_step("split packs_transposed", split="true", packs='"transposed"'),
    "adamw_split_slice_pack_transposed": optimizer_step("split packs_transposed", split="true", packs='"transposed"'),
}

# "  %1: f32[2], %2: f32[2] = op(%0)  {key=value, ...}  phase"; values hold no braces.
NODE = re.compile(r"^(?P<outputs>  %.* = )(?P<op>\w+)(?P<inputs>\([^)]*\))(?:  \{(?P<attributes>[^}]*)\})?(?P<rest>.*)$")
ATTRIBUTE = re.compile(r'(\w+)=((?:"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,])+)')
OLD = "|".join(sorted(RENAMES, key=len, reverse=True))
# "33 n39 layers.0.optimizer op update | ref:op (...)"
PLANNED = re.compile(rf"^(?P<place>\s+\d+ n\d+ (?:\S+ )?)(?P<op>{OLD})(?P<phase> \w+ \| \w+:)(?P<row>{OLD})(?P<rest>[_ ].*)$")


def graph_line(line):
    node = NODE.match(line)
    rename = node and RENAMES.get(node["op"])
    if not rename:
        return line
    attributes = dict(ATTRIBUTE.findall(node["attributes"] or "")) | rename.attributes
    text = ", ".join(f"{key}={attributes[key]}" for key in sorted(attributes))
    return f"{node['outputs']}{rename.op}{node['inputs']}" + (f"  {{{text}}}" if text else "") + node["rest"]


def plan_line(line):
    node = PLANNED.match(line)
    if not node:
        return line
    return (node["place"] + RENAMES[node["op"]].label() + node["phase"] + RENAMES[node["row"]].op + node["rest"])


def case_line(line, rename):
    if not line.strip() or line[0] in "#@":
        return line
    parts = [part.strip() for part in line.split("|")] + [""]
    gained = " ".join(f"{key}={value}" for key, value in rename.attributes.items())
    parts[1] = f"{parts[1]} {gained}".strip()
    return " | ".join(part for i, part in enumerate(parts) if part or i == 1).rstrip(" |")


def merge_cases(old, new, rename):
    """Appends the cases of one op's file to those of another; what a file says of all its cases must agree."""
    lines = [case_line(line, rename) for line in old.read_text().splitlines()]
    known = new.read_text().splitlines() if new.exists() else []
    of_all = [{line for line in text if line.startswith("@")} for text in (known, lines)]
    if known and of_all[0] != of_all[1]:
        sys.exit(f"{old}: expected the directives of {new}, {sorted(of_all[0])}, got {sorted(of_all[1])}")
    if known:
        lines = [line for line in lines if "SPDX" not in line and not line.startswith("@")]
    new.write_text("\n".join(known + lines) + "\n")
    old.unlink()


def rewrite(path, change):
    before = path.read_text()
    after = "".join(change(line.rstrip("\n")) + "\n" for line in before.splitlines())
    if after != before:
        path.write_text(after)
        print(path)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    tests = root / "tests"
    for path in sorted(tests.rglob("*.ir")):
        rewrite(path, graph_line)
    for path in sorted(tests.rglob("*.plan.txt")):
        rewrite(path, plan_line)
    for op, rename in RENAMES.items():
        old = tests / "ops/cases" / f"{op}.txt"
        if old.exists():
            merge_cases(old, tests / "ops/cases" / f"{rename.op}.txt", rename)
            print(old)


if __name__ == "__main__":
    main()
