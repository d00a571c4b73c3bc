#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the charts of docs/measurements: pytorch.svg from the first table of zen5.md, and ablation.svg from the ladder of ablation.md.

The second one is written where its page exists, which bench/ablation.py writes. Colours are readable on a light and on a dark
page, for an image cannot know which of them shows it.
usage: chart.py            writes the charts
       chart.py --check    fails when a chart differs from its table
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/measurements/zen5.md"
CHART = ROOT / "docs/measurements/pytorch.svg"
LADDER = ROOT / "docs/measurements" / "ablation.md"
LADDER_CHART = ROOT / "docs/measurements/ablation.svg"
MODELS = ("moe_coarse", "moe_fine", "dense")
TEXT, PEER, OURS = "#6e7781", "#9aa4af", "#1f9d8f"
PANELS = (("Time of a step (s)", 1, 3), ("Peak memory of the process (GB)", 2, 4))
COLOURS = (OURS, "#c27d2b", "#7a6fd0")
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


def ladder_rows():
    """Models, and the rows of the ladder: a name, and the cells of step and peak of each model in turn."""
    lines = LADDER.read_text().splitlines()
    begin = next((place for place, line in enumerate(lines) if line.startswith("| on so far |")), None)
    if begin is None:
        raise SystemExit(f"{LADDER}: expected a table that begins with | on so far |")
    table = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    models = [cell.split("`")[1] for cell in table[0][1::2]]
    return models, table[2:]


def ladder_panel(left, start, title, first, table, models):
    """Bars of each row, one for each model; columns first, first + 2, ... of the table."""
    values = [[re.match(r"[\d.]+", cell) for cell in row[first::2]] for row in table]
    longest = max((float(value[0]) for row in values for value in row if value), default=1)
    room, pitch, height = PANEL + left - start - 60, 13 * len(models) + 12, 10
    out = [text(start, TOP - 18, title, weight="bold")]
    for place, row in enumerate(values):
        for which, value in enumerate(row):
            y = TOP + place * pitch + 13 * which
            width = room * float(value[0]) / longest if value else 0
            out.append(f'<rect x="{start:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height}" rx="2" fill="{COLOURS[which % 3]}"/>')
            out.append(text(start + width + 5, y + height - 1, f"{value[0]}x" if value else table[place][first + 2 * which], size=11))
    return out


def ladder_chart():
    models, table = ladder_rows()
    pitch, names = 13 * len(models) + 12, 260
    height = TOP + len(table) * pitch + 22
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
           '     aria-label="Step time and peak memory as one group of passes after another is switched on"',
           f'     font-family="system-ui, sans-serif" fill="{TEXT}">']
    for place, model in enumerate(models):
        out += [bar(names + 150 * place, 6, 24, COLOURS[place % 3]), text(names + 150 * place + 32, 18, model)]
    for place, row in enumerate(table):
        out.append(text(names - 10, TOP + place * pitch + pitch / 2, row[0].replace("&", "&amp;").replace("<", "&lt;"), "end", 12))
    out += ladder_panel(130, names, "Time of a step", 1, table, models)
    out += ladder_panel(400, 545, "Peak memory", 2, table, models)
    out.append(text(10, height - 8, "Relative to all on. Each row adds one group to those above it. Shorter is better.", size=12))
    return "\n".join(out + ["</svg>"]) + "\n"


def charts():
    """(chart, its table, what it should hold)."""
    yield CHART, TABLE, chart()
    if LADDER.exists():
        yield LADDER_CHART, LADDER, ladder_chart()


def main():
    if sys.argv[1:] == ["--check"]:
        status = 0
        for path, table, wanted in charts():
            if not path.exists() or path.read_text() != wanted:
                print(f"{path.relative_to(ROOT)} differs from the table of {table.relative_to(ROOT)}: run python3 bench/chart.py")
                status = 1
        if LADDER_CHART.exists() and not LADDER.exists():
            print(f"{LADDER_CHART.relative_to(ROOT)} has no {LADDER.relative_to(ROOT)}")
            status = 1
        if status == 0:
            print("chart: clean")
        return status
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    for path, _, wanted in charts():
        path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
