#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills or stops one rank of several, or lets it throw: the others tell within five seconds, or go on where it does.

usage: kill_rank.py MPIRUN KILL_RANK_BINARY [--all]
"""
import re
import subprocess
import sys


def run(mpirun, binary, num_ranks, *arguments):
    """The launcher lets the other ranks live, so that nothing but signs of life tells them."""
    command = [mpirun, "--enable-recovery", "-n", str(num_ranks), binary, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


def expect(claim, what, text):
    if not claim:
        raise SystemExit(f"expected {what}; got:\n{text}")


def expect_named(mpirun, binary, num_ranks, what, victim, at, seconds, method="ordered"):
    _, text = run(mpirun, binary, num_ranks, what, victim, at, seconds, method)  # it returns 0 with --enable-recovery
    process = re.search(rf"victim {victim} is process (\d+)", text)
    expect(process, "a victim", text)
    ends = re.findall(r"rank (\d+) ended after ([\d.]+) s: (.*)", text)
    others = {str(rank) for rank in range(num_ranks) if rank != victim}
    expect(others <= {rank for rank, _, _ in ends}, f"an end of ranks {sorted(others)}", text)
    for rank, after, error in ends:
        if int(rank) == victim:  # it goes on after its stop, and hears of its death
            continue
        expect(float(after) < 5, f"rank {rank} to end within 5 s", text)
        expect(f"rank {victim} (host" in error and f"process {process[1]})" in error, f"rank {victim} to be named", text)
        expect(re.search("of step 9|before its first exchange", error), "its last exchange", text)


def expect_thrown(mpirun, binary, num_ranks, victim, at, method="ordered"):
    _, text = run(mpirun, binary, num_ranks, "throw", victim, at, 0, method)
    ends = re.findall(r"rank (\d+) ended after ([\d.]+) s: (.*)", text)
    expect(len(ends) == num_ranks, "an end of each rank", text)
    expect(all(error == "disk full" and float(after) < 5 for _, after, error in ends), "one text", text)


def expect_done(mpirun, binary, num_ranks, *arguments):
    code, text = run(mpirun, binary, num_ranks, *arguments)
    expect(code == 0 and len(re.findall(r"rank \d+ is done", text)) == num_ranks, "all ranks to end well", text)


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    mpirun, binary = sys.argv[1:3]
    if "--all" not in sys.argv:
        expect_named(mpirun, binary, 4, "kill", 2, 40, 0)
        expect_thrown(mpirun, binary, 2, 1, 40)
        expect_named(mpirun, binary, 2, "kill", 1, 40, 0, "mpi")
        expect_thrown(mpirun, binary, 2, 1, 40, "mpi")
        return
    expect_thrown(mpirun, binary, 4, 3, 5)
    for num_ranks, victim, at in ((2, 0, 1), (2, 1, 25), (4, 0, 60), (4, 3, 10)):
        expect_named(mpirun, binary, num_ranks, "kill", victim, at, 0)
    expect_done(mpirun, binary, 2, "stop", 1, 20, 2, "ordered")
    expect_named(mpirun, binary, 2, "stop", 1, 20, 10)
    expect_named(mpirun, binary, 4, "kill", 3, 10, 0, "mpi")
    expect_done(mpirun, binary, 2, "stop", 1, 20, 2, "mpi")


if __name__ == "__main__":
    main()
