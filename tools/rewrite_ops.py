#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites test files to the ops of today after ops were renamed: graphs (*.ir), plans (*.plan.txt) and case files
(tests/ops/cases/OP.txt). A second run changes nothing.

usage: rewrite_ops.py [SOURCE_DIR]

To rename an op, add a row to RENAMES. Scales that were values of their own become part of the quantised value. Sources are not rewritten: a compiler or a test names them.
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


DEFINITION = re.compile(r'^  (?:batch|step_input|state) %(\d+)|^  (%\d.*?) = ')
REFERENCE = re.compile(r"%(\d+)")


def split_outputs(text):
    """The outputs of a node, "%1 \"name\": f32[2,3]" each."""
    return re.findall(r'%\d+(?: "(?:[^"\\]|\\.)*")?: \w+\[[^\]]*\](?:@\w+)?', text)


def quantised(output, form):
    return re.sub(r": [iu]8\[", f": {form}[", output)


def merge_scales(lines):
    """One graph's lines with each scale in the type of what it scales; values are numbered anew in order of definition."""
    gone, scales, result = set(), set(), []
    for line in lines:
        state = re.match(r'^  state %(\d+) .* (first|second)_moment_scales of ', line)
        if state:
            gone.add(state[1])
            scales.update(re.findall(r"-> %(\d+)", line))
            continue
        moment = re.match(r'^  state .*: u8\[.* (first|second)_moment of ', line)
        if moment:
            line = quantised(line, "dynamic8_f32_16x16" if moment[1] == "first" else "udynamic8_f32_16x16")
        result.append(line)
    lines, result = result, []
    for line in lines:
        node = NODE.match(line)
        if node:
            attributes = dict(ATTRIBUTE.findall(node["attributes"] or ""))
            outputs, kept, op = split_outputs(node["outputs"]), [], node["op"]
            for i, output in enumerate(outputs):
                name = REFERENCE.match(output)[1]
                if i > 0 and ": i8[" in outputs[i - 1]:
                    gone.add(name)
                elif op == "optimizer_step" and name in scales:
                    gone.add(name)
                elif ": i8[" in output and "block" in attributes:
                    kept.append(quantised(output, f"i8_bf16_1x{attributes['block']}"))
                elif ": u8[" in output:
                    is_second = any(": dynamic8" in earlier for earlier in kept)
                    kept.append(quantised(output, "udynamic8_f32_16x16" if is_second else "dynamic8_f32_16x16"))
                else:
                    kept.append(output)
            inputs = [i for i in re.findall(r"%\d+", node["inputs"]) if i[1:] not in gone]
            if len(inputs) < len(re.findall(r"%\d+", node["inputs"])):
                attributes.pop("block", None)
            text = ", ".join(f"{key}={attributes[key]}" for key in sorted(attributes))
            line = f"  {', '.join(kept)} = {op}({', '.join(inputs)})" + (f"  {{{text}}}" if text else "") + node["rest"]
        result.append(line)
    if not gone:
        return lines
    numbers = {}
    for line in result:
        found = DEFINITION.match(line)
        for name in REFERENCE.findall(found[1] and "%" + found[1] or found[2]) if found else []:
            numbers.setdefault(name, len(numbers))
    return [REFERENCE.sub(lambda found: f"%{numbers[found[1]]}", line) for line in result]


def graph_text(text):
    lines, graph = [], None
    for line in text.splitlines():
        if line.startswith('graph "'):
            graph = [line]
        elif graph is not None and line.startswith("  "):
            graph.append(line)
        else:
            lines += merge_scales(graph) if graph else []
            graph = None
            lines.append(line)
    return "\n".join(lines + (merge_scales(graph) if graph else [])) + "\n"


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
        before = path.read_text()
        if (after := graph_text(before)) != before:
            path.write_text(after)
            print(path)
    for path in sorted(tests.rglob("*.plan.txt")):
        rewrite(path, plan_line)
    for op, rename in RENAMES.items():
        old = tests / "ops/cases" / f"{op}.txt"
        if old.exists():
            merge_cases(old, tests / "ops/cases" / f"{rename.op}.txt", rename)
            print(old)


if __name__ == "__main__":
    main()
