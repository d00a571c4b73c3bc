# SPDX-License-Identifier: Apache-2.0
"""Writes goldens.jsonl: snippets of each kind of expression with jinja2's text, or null where it is an error.

usage: make_goldens.py [COUNT]
"""
import json
import pathlib
import random
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "integration" / "template"))

import template_expressions as expressions  # noqa: E402
from template_parity import reference  # noqa: E402


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    lines = [json.dumps({"context": expressions.CONTEXT}, ensure_ascii=False)]
    for kind in expressions.KINDS:
        maker = expressions.Maker(random.Random(f"golden {kind.__name__}"))
        for _ in range(count):
            template = kind(maker)
            text, _ = reference(template, expressions.CONTEXT)
            if text is None or not re.search(r" at 0x|\dj\)", text) and "strftime" not in template and " % " not in template:
                lines.append(json.dumps({"kind": kind.__name__, "template": template, "text": text}, ensure_ascii=False))
    (HERE / "goldens.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} snippets")


if __name__ == "__main__":
    main()
