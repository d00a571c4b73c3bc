# SPDX-License-Identifier: Apache-2.0
"""Processes that make a step for each line they are sent, so that variants take turns."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
SETTLE_SECONDS = 0.1  # spinning threads of the process before go to sleep


def start(command, environment, **pipes):
    """A process without the variables that would slow PyTorch down."""
    kept = {key: value for key, value in os.environ.items() if key not in UNSET}
    return subprocess.Popen(list(map(str, command)), text=True, env=kept | environment, **pipes)


def serve(step):
    """In the process: a step for each line of standard input; its seconds, loss and the peak of memory so far as a line of output."""
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        loss = step()
        seconds = time.monotonic() - begin
        peak = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
        print(json.dumps({"seconds": {"total": seconds}, "loss": loss, "peak": peak}), flush=True)


class Served:
    """The other end, also of `anabatic bench --serve`."""

    def __init__(self, name, command, environment):
        self.name, self.seconds, self.peak, self.loss = name, [], 0, None
        self.process = start(command, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def round(self):
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.read()
        self.seconds.append(line["seconds"]["total"])
        self.peak, self.loss = line.get("peak", 0), line.get("loss")

    def median(self):
        return statistics.median(self.seconds)
