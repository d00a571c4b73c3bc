#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/measurements/pytorch.svg, the chart of the README, from the first table of docs/measurements/zen5.md.

Colours are readable on a light and on a dark page, for an image cannot know which of them shows it.
usage: chart.py            writes the chart
       chart.py --check    fails when the chart differs from the table
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/measurements/zen5.md"
CHART = ROOT / "docs/measurements/pytorch.svg"
MODELS = ("moe_coarse", "moe_fine", "dense")
TEXT, PEER, OURS = "#6e7781", "#9aa4af", "#1f9d8f"
PANELS = (("Time of a step (s)", 1, 3), ("Peak memory of the process (GB)", 2, 4))
WIDTH, PANEL, LEFT, BAR, PITCH, TOP = 800, 400, 92, 15, 52, 62


def rows():
    """Cells of the row of each model; of a range the lower figure."""
    table = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0].strip("`")
        if name in MODELS and name not in table:
            table[name] = [name] + [re.match(r"[\d.]+", cell).group(0) for cell in cells[1:]]
    if list(table) != list(MODELS):
        raise SystemExit(f"{TABLE}: expected rows of {', '.join(MODELS)}, got {', '.join(table)}")
    return list(table.values())


def text(x, y, words, anchor="start", size=13, weight="normal"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{words}</text>'


def bar(x, y, width, colour):
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'


def panel(left, title, peer, ours, table):
    start, room = left + LEFT, PANEL - LEFT - 110
    longest = max(float(row[column]) for row in table for column in (peer, ours))
    out = [text(start, TOP - 18, title, weight="bold")]
    for place, row in enumerate(table):
        y = TOP + place * PITCH
        out.append(text(start - 8, y + BAR + 5, row[0], "end"))
        for at, value, colour, note in ((y, row[peer], PEER, ""), (y + BAR + 3, row[ours], OURS, f" ({float(row[ours]) / float(row[peer]):.2f}x)")):
            width = room * float(value) / longest
            out += [bar(start, at, width, colour), text(start + width + 6, at + BAR - 3, value + note, size=12)]
    return out


def chart():
    table = rows()
    height = TOP + len(table) * PITCH + 22
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
           '     aria-label="Step time and peak memory of PyTorch and Anabatic for three models"',
           f'     font-family="system-ui, sans-serif" fill="{TEXT}">']
    for x, colour, words in ((LEFT, PEER, "PyTorch 2.13, autocast, torch.compile"), (LEFT + 290, OURS, "Anabatic, fastest plan")):
        out += [bar(x, 6, 24, colour), text(x + 32, 18, words)]
    out.append(text(LEFT, height - 8, "One training step of 4 x 512 tokens in bf16 on two Zen 5 cores. Shorter is better.", size=12))
    for place, (title, peer, ours) in enumerate(PANELS):
        out += panel(place * PANEL, title, peer, ours, table)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        if not CHART.exists() or CHART.read_text() != chart():
            print(f"{CHART.relative_to(ROOT)} differs from the table of {TABLE.relative_to(ROOT)}: run python3 bench/chart.py")
            return 1
        print("chart: clean")
        return 0
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    CHART.write_text(chart())
    return 0


if __name__ == "__main__":
    sys.exit(main())
