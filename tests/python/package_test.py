# SPDX-License-Identifier: Apache-2.0
"""The package itself: what an import takes, its types, the command line inside it."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tiny

PACKAGE = pathlib.Path(importlib.util.find_spec("anabatic").origin).parent


def python(*arguments, **options):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, **options)


class Import(unittest.TestCase):
    def test_takes_little_memory_and_no_other_package(self):
        code = """
import os, sys
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
import anabatic
assert not {"torch", "numpy"} & set(sys.modules), "imports more than it needs"
print(resident() - before)
"""
        done = python("-c", code, check=True)
        self.assertLess(int(done.stdout), 20e6)

    def test_a_second_copy_says_so(self):
        with tempfile.TemporaryDirectory() as scratch:
            copy = pathlib.Path(scratch) / "anabatic"
            copy.mkdir()
            (copy / "__init__.py").symlink_to(PACKAGE / "__init__.py")
            code = f"import sys, anabatic; del sys.modules['anabatic']; sys.path.insert(0, {scratch!r}); import anabatic"
            self.assertIn("expected one anabatic in a process", python("-c", code).stderr)


@unittest.skipIf(importlib.util.find_spec("mypy") is None or importlib.util.find_spec("torch") is None, "no mypy, or no torch")
class Types(unittest.TestCase):
    def test_mypy_accepts_the_package_and_right_uses_and_refuses_wrong_ones(self):
        right = "import anabatic as ab\nrun = ab.Training('run.yaml', {'train.steps': 3})\nfor metrics in run:\n    x: float = metrics.loss\n"
        wrong = right + "y: str = metrics.loss\nmetrics.lose\nab.info(3)\n"
        with tempfile.TemporaryDirectory() as scratch:
            def mypy(*what):
                done = python("-m", "mypy", "--cache-dir", f"{scratch}/cache", *what, env=os.environ | {"MYPYPATH": str(PACKAGE.parent)})
                return done.stdout

            self.assertNotIn("error:", mypy("-p", "anabatic"))
            for name, text, errors in (("right", right, 0), ("wrong", wrong, 3)):  # the package is known now
                file = pathlib.Path(scratch) / f"{name}.py"
                file.write_text(text)
                out = mypy(file)
                self.assertEqual(out.count("error:"), errors, out)


class CommandLine(unittest.TestCase):
    def test_is_the_binary(self):
        for arguments in (["--version"], ["help"], ["train", "--train.step", "3"], ["plan", "/nowhere"]):
            binary = subprocess.run([os.environ["ANABATIC_BINARY"], *arguments], capture_output=True, text=True)
            module = python("-m", "anabatic", *arguments)
            self.assertEqual((module.returncode, module.stdout, module.stderr), (binary.returncode, binary.stdout, binary.stderr))

    def test_trains(self):
        with tempfile.TemporaryDirectory() as scratch:
            settings = tiny.run_settings(scratch)
            done = python("-m", "anabatic", "train", *tiny.arguments(settings))
            self.assertEqual((done.returncode, "step 6" in done.stdout or "6/6" in done.stdout), (0, True), done.stdout + done.stderr)

    def test_names_its_places_once_it_is_installed(self):
        done = python("-m", "anabatic", "--cmake-dir")
        installed = (PACKAGE / "lib/cmake/anabatic").is_dir()
        self.assertEqual(done.returncode, 0 if installed else 1)
        self.assertIn(str(PACKAGE / "lib/cmake/anabatic"), done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
