# SPDX-License-Identifier: Apache-2.0
"""Pages of `anabatic report` opened in a headless Chromium: every picture is drawn, the console stays empty, nothing is asked of a network.

usage: report_page.py BINARY CHROMIUM
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
}
# For a browser without background work of its own; --no-sandbox, because tests may run as root.
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--virtual-time-budget=5000",
    "--enable-logging=stderr",
]
# Points at the middle of every picture, and notes what the box with numbers says.
POINTER = """<script>
const said = [];
for (const picture of document.querySelectorAll("figure svg, figure canvas")) {
  const box = picture.getBoundingClientRect();
  picture.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
  if (document.getElementById("tip").style.display === "block") said.push(document.getElementById("tip").textContent);
  picture.dispatchEvent(new MouseEvent("mouseleave"));
}
document.documentElement.dataset.tips = said.length;
document.documentElement.dataset.undefinedTips = said.filter(text => /undefined|NaN|not known/.test(text)).length;
</script>"""


def expect(condition, message):
    if not condition:
        sys.exit(f"report_page: expected {message}")


def train(binary, folder, run, *arguments):
    subprocess.run([binary, "train", "--model.path", folder / "model", "--model.init", "random", "--data.train", folder / "text.txt",
                    "--data.validation", folder / "text.txt", "--data.sequence_length", "16", "--train.output", run,
                    "--device.calibrate", "false", *arguments], check=True, stdout=subprocess.DEVNULL)


def write_long_run(folder):
    """A run of 200,000 steps that was killed, with a spike, a loss that is not finite, an idle expert and text that looks like HTML."""
    folder.mkdir()
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, 200_001):
            loss = 4 * math.exp(-step / 40_000) + 2 + (50 if step == 123_456 else 0)
            line = {"step": step, "loss": None if 60_000 <= step < 61_000 else loss, "learning_rate": 1e-3, "tokens_per_second": 1e4, "tokens": 99,
                    "loss_scale": 2.0 ** (16 - step % 3), "skipped": step % 20_000 == 1}
            file.write(json.dumps(line) + "\n")
        file.write('{"step": 200001, "lo')
    with open(folder / "windows.jsonl", "w") as file:
        for window in range(200):
            experts = {str(layer): [0 if e == 3 else 100 + (layer * e + window) % 50 for e in range(64)] for layer in range(12)}
            file.write(json.dumps({"step": 1000 * window + 1000, "first_step": 1000 * window + 1, "experts": experts}) + "\n")
    config = {"train.output": "</script><script>document.title='broken'</script>", "data.train": "<img src='http://example.org/a.png' onerror='x()'>"}
    (folder / "run.json").write_text(json.dumps({"steps": 300_000, "config": config, "defaults": {}}))
    (folder / "run.lock").write_text("")


def open_page(chromium, page, folder):
    """The document as the browser has drawn it, lines of its console, and what it asked a network for."""
    net_log = folder / "net.json"
    browser = subprocess.run([chromium, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net_log}", "--dump-dom", page.as_uri()],
                             capture_output=True, text=True, timeout=200, check=True)
    console = [line for line in browser.stderr.splitlines() if "CONSOLE" in line]
    requests = [event["params"] for event in json.loads(net_log.read_text())["events"] if isinstance(event.get("params"), dict)]
    # What the browser asks for itself has no origin.
    asked = {request["url"] for request in requests
             if request.get("initiator", "not an origin") != "not an origin" and not request["url"].startswith(("file:", "data:"))}
    return browser.stdout, console, asked


def check_the_checks(chromium, folder):
    """A page that loads an image and writes to the console is found out."""
    page = folder / "bad.html"
    page.write_text("<!DOCTYPE html><body><img src='http://127.0.0.1:9/a.png'><script>console.error('no')</script></body>")
    _, console, asked = open_page(chromium, page, folder)
    expect(len(console) == 1 and asked == {"http://127.0.0.1:9/a.png"}, f"a bad page to be found out, got {console} and {asked}")


def check(chromium, page, folder, charts, canvases):
    page.write_text(page.read_text().replace("</body>", POINTER + "</body>"))
    dom, console, asked = open_page(chromium, page, folder)
    expect(not console, f"an empty console, got {console}")
    expect(not asked, f"no request to a network, got {asked}")
    dom = re.sub("<script.*?</script>", "", dom, flags=re.DOTALL)
    expect("data-error" not in dom, "a page without an error")
    drawn = re.search(r'data-charts="(\d+)"', dom)
    expect(drawn and int(drawn[1]) == charts, f"{charts} pictures, got {drawn and drawn[1]}")
    expect(len(re.findall("<figure>", dom)) == charts, f"{charts} figures")
    expect(len(re.findall("<canvas ", dom)) == canvases, f"{canvases} heat maps")
    expect(f'data-tips="{charts}"' in dom or f'data-tips="{charts - 1}"' in dom, "numbers under the pointer in every picture but the bars")
    expect('data-undefined-tips="0"' in dom, "numbers under the pointer that are known")
    for number in re.findall(r' d="([^"]*)"', dom):
        expect("NaN" not in number and "undefined" not in number, f"paths of numbers, got {number[:200]}")
    return dom


def main():
    binary, chromium = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text.txt").write_text("".join(f"Line {i} of {i * i} lines.\n" for i in range(200)))
        subprocess.run([binary, "tokenize", "--train", folder / "text.txt", "--vocab_size", "300", "--output", folder / "model"], check=True)
        (folder / "model/config.json").write_text(json.dumps(CONFIG))
        train(binary, folder, folder / "a", "--train.steps", "60", "--train.validate_every", "20")
        train(binary, folder, folder / "b", "--train.steps", "30", "--train.gradient_accumulation_steps", "2")
        write_long_run(folder / "long")
        check_the_checks(chromium, folder)

        dom = check(chromium, folder / "a/report.html", folder, charts=14, canvases=2)
        expect("step 60 of 60, done" in dom, "the run's state")

        def report(page, *runs):
            subprocess.run([binary, "report", *runs, "--output", page], check=True, stdout=subprocess.DEVNULL)
            return page

        dom = check(chromium, report(folder / "both.html", folder / "a", folder / "b"), folder, charts=18, canvases=4)
        expect("2 runs side by side" in dom, "both runs")
        expect('<tr class="differs"><td class="key">train.gradient_accumulation_steps</td>' in dom, "keys that differ to be marked")

        page = report(folder / "long.html", folder / "long")
        expect(page.stat().st_size < 2_000_000, f"a small page of a long run, got {page.stat().st_size} bytes")
        dom = check(chromium, page, folder, charts=16, canvases=12)
        expect("broken</title>" not in dom and "<img" not in dom, "text of a config to stay text")
        expect("running or killed" in dom and "mean of 512 steps" in dom, "the description of a long run")
        expect("10 steps were skipped" in dom, "the caption of the loss scale")
        loss = re.search(r'aria-label="Loss">(.*?)</svg>', dom)[1]
        expect(max(d.count("M") for d in re.findall(r' d="([^"]*)" fill="none"', loss)) == 2, "a gap where the loss is not finite")


main()
