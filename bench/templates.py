#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders of chat templates a second on one core against transformers, in alternating rounds, with sources of characters on.

    templates.py DRIVER [--rounds 5] [--templates qwen3 llama3_1 gptoss]

DRIVER is build/release/tests/integration/template/template_driver. The templates are those inside `trl`, the conversation has nine
messages. Times are CPU seconds; the median of rounds is printed, for a conversation from JSON to text (`chat`) and for the template alone.
"""
import argparse
import importlib.util
import pathlib
import statistics
import sys
import time

from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/integration/template"))
from template_parity import Driver  # noqa: E402

TEMPLATES = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES = [{"role": "system", "content": "You are a helpful assistant."}]
for turn in range(4):
    MESSAGES.append({"role": "user", "content": f"Question {turn}: " + "how does this work, and why? " * 6})
    MESSAGES.append({"role": "assistant", "content": f"Answer {turn}. " + "It works as it does because of this. " * 10})


def their_speed(template, count):
    begin = time.process_time()
    for _ in range(count):
        render_jinja_template([MESSAGES], chat_template=template, **TOKENS)
    return count / (time.process_time() - begin)


def our_speed(driver, template, count, **request):
    return count / driver.render(template, repeat=count, **request)["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--templates", nargs="+", default=["qwen3", "llama3_1", "gptoss"])
    options = parser.parse_args()
    driver = Driver(options.driver)
    context = {"messages": MESSAGES, "tools": None, "documents": None, "add_generation_prompt": False, **TOKENS}
    print(f"{'template':12} {'transformers':>13} {'chat':>9} {'times':>6} {'template':>9} {'times':>6}")
    for name in options.templates:
        template = (TEMPLATES / f"{name}.jinja").read_text()
        rounds = [(their_speed(template, 1000), our_speed(driver, template, 5000, context=None, row={"messages": MESSAGES}, named_tokens=TOKENS),
                   our_speed(driver, template, 5000, context=context)) for _ in range(options.rounds)]
        theirs, chat, alone = (statistics.median(column) for column in zip(*rounds))
        print(f"{name:12} {theirs:13.0f} {chat:9.0f} {chat / theirs:6.1f} {alone:9.0f} {alone / theirs:6.1f}")


if __name__ == "__main__":
    main()
