# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m anabatic train run.yaml

--cmake-dir, --include-dir and --library-dir print where the package has its C++ library.
"""
import os
import pathlib
import signal
import sys

from . import _core

_PLACES = {"--cmake-dir": "lib/cmake/anabatic", "--include-dir": "include", "--library-dir": "lib"}


def _print_place(name):
    place = pathlib.Path(__file__).absolute().parent / _PLACES[name]
    if not place.is_dir():
        print(f"error: expected {place}, which only an installed package has", file=sys.stderr)
        return 1
    print(place)
    return 0


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 1 and arguments[0] in _PLACES:
        return _print_place(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a run catches it by itself
    code = _core.run_command_line(arguments)
    sys.stdout = open(os.devnull, "w")  # it has closed the other one
    return code


if __name__ == "__main__":
    sys.exit(main())
