# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is inside, and that it works in empty environments of every Python found, without and with torch.

ANABATIC_WHEEL names a wheel to test instead of building one. ANABATIC_PYTHONS has more interpreters, separated by colons.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import tiny

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VERSIONS = [(3, minor) for minor in range(10, 15)]
MAX_BYTES, MAX_SECONDS, MAX_RESIDENT = 8_000_000, 0.15, 20_000_000
# An environment that sees neither the build directory nor the packages of this process.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

IMPORT = """
import os, time
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, start = resident(), time.perf_counter()
import anabatic
print(time.perf_counter() - start, resident() - before)
"""
WITHOUT_TORCH = """
import importlib.util
assert importlib.util.find_spec("torch") is None
try:
    import anabatic.torch
except ImportError as error:
    print(error)
"""
TRAIN = """
import sys, anabatic as ab
with ab.Training(sys.argv[1], {"train.output": sys.argv[2]}) as run:
    print(*[metrics.loss.hex() for metrics in run])
"""
WITH_TORCH = """
import sys, torch
assert "anabatic" in torch.compiler.list_backends() and "anabatic" not in sys.modules
import anabatic.torch
assert anabatic.__file__.startswith(sys.argv[1]), anabatic.__file__
x, weight = torch.ones(4, 16, requires_grad=True), torch.full((16,), 2.0)
y = anabatic.torch.ops.rms_norm(x, weight, 0.0)
y[:, 0].sum().backward()
assert torch.equal(y, torch.full((4, 16), 2.0)) and x.grad.sum().abs() < 1e-5 and x.grad[0, 0] > 0
compiled = torch.compile(lambda x: torch.nn.functional.rms_norm(x, (16,), weight, 0.0), backend="anabatic")
assert torch.equal(compiled(x), y)
"""


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **{"env": CLEAN, **options})
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def version_of(interpreter):
    """Of an interpreter that runs and can make environments, or None."""
    code = "import ensurepip, sys, venv; print(sys.version_info[0], sys.version_info[1])"
    try:
        done = subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True, env=CLEAN)
    except OSError:
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def interpreters():
    """One for each version."""
    names = [*filter(None, os.environ.get("ANABATIC_PYTHONS", "").split(os.pathsep)), getattr(sys, "_base_executable", sys.executable),
             *(f"python{major}.{minor}" for major, minor in VERSIONS), *(f"python3.{minor}" for minor in (8, 9)), "python3", "/usr/bin/python3"]
    found = {}
    for name in names:
        place = shutil.which(name)
        version = place and version_of(place)
        if version:
            found.setdefault(version, place)
    return found


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        given = os.environ.get("ANABATIC_WHEEL")
        if not given:
            run("sh", ROOT / "tools/wheel.sh", cls.scratch / "dist")
        wheels = [pathlib.Path(given)] if given else list((cls.scratch / "dist").iterdir())
        assert len(wheels) == 1, f"expected one wheel, got {wheels}"
        cls.wheel = wheels[0]
        cls.inside = cls.scratch / "inside"
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(cls.inside)
        cls.libraries = [file for file in cls.inside.rglob("*.so*") if file.is_file()]
        cls.found = interpreters()
        for version in VERSIONS:
            print(f"Python {version[0]}.{version[1]}: {cls.found.get(version, 'not found')}", file=sys.stderr)
        cls.environments = {}

    def python_of(self, version):
        """The interpreter of an environment with the wheel and what it depends on. Each is made once."""
        if version not in self.environments:
            place = self.scratch / f"venv{version[0]}.{version[1]}"
            run(self.found[version], "-I", "-m", "venv", place)
            run(place / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", self.wheel)
            self.environments[version] = place / "bin/python"
        return self.environments[version]

    def each_python(self):
        versions = [version for version in VERSIONS if version in self.found]
        self.assertTrue(versions, "found no Python from 3.10 to 3.14")
        return ((version, self.python_of(version)) for version in versions)

    def test_name_and_size(self):
        guide = (ROOT / "docs/guide/python.md").read_text()
        glibc = re.search(r"glibc (\d+)\.(\d+) or newer", guide)
        # A wheel may name an older system than the guide promises, and no newer one.
        tags = re.fullmatch(r"anabatic-[\d.]+-cp310-abi3-((?:\.?manylinux_\d+_\d+_x86_64)+)\.whl", self.wheel.name)
        self.assertIsNotNone(tags, self.wheel.name)
        oldest = min(tuple(map(int, pair)) for pair in re.findall(r"manylinux_(\d+)_(\d+)", tags[1]))
        self.assertLessEqual(oldest, tuple(map(int, glibc.groups())))
        self.assertLessEqual(self.wheel.stat().st_size, MAX_BYTES)

    def test_holds_no_runtime_of_threads_or_processes(self):
        self.assertGreater(len(self.libraries), 2)
        foreign = re.compile(r"lib(?:gomp|iomp5?|omp|mpi\w*|open-rte|open-pal|pmix|python3\S*|torch\w*)\b")
        for file in self.libraries:
            self.assertIsNone(foreign.match(file.name), file)
            for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", file)):
                self.assertIsNone(foreign.match(needed), f"{file.name} needs {needed}")

    def test_symbols_are_hidden(self):
        self.assertEqual(self.symbols("_core.abi3.so"), ["T PyInit__core"])
        symbols = self.symbols("lib*/libanabatic.so")
        self.assertTrue(any("anabatic::Session::step" in symbol for symbol in symbols))
        for symbol in symbols:
            self.assertNotRegex(symbol, r"^\w (?:std::|google::|anabatic::[a-z]+::)")

    def symbols(self, pattern):
        """What a library of the package exports: a letter for the kind, and the name."""
        file, = (self.inside / "anabatic").glob(pattern)
        return [line.split(maxsplit=1)[1] for line in run("nm", "-D", "--defined-only", "-C", file).splitlines()]

    def test_holds_types_headers_and_licence(self):
        for name in ("anabatic/py.typed", "anabatic/_core.pyi", "anabatic/include/anabatic/engine.h", "anabatic-*.dist-info/licenses/LICENSE"):
            self.assertTrue(list(self.inside.glob(name)), name)

    def test_imports_quickly_and_without_torch(self):
        for version, python in self.each_python():
            results = [run(python, "-I", "-c", IMPORT).split() for _ in range(5)]
            self.assertLess(min(float(seconds) for seconds, _ in results), MAX_SECONDS, version)
            self.assertLess(min(int(resident) for _, resident in results), MAX_RESIDENT, version)
            self.assertIn("pip install torch", run(python, "-I", "-c", WITHOUT_TORCH), version)

    def test_trains_to_the_same_losses_everywhere(self):
        settings = tiny.run_settings(self.scratch)
        file = self.scratch / "run.yaml"  # JSON is YAML
        file.write_text(json.dumps({key: str(value) for key, value in settings.items() if not key.startswith("generate.")}))
        losses = {}
        for version, python in self.each_python():
            output = self.scratch / f"run{version[1]}"
            losses[version] = run(python, "-I", "-c", TRAIN, file, output).split()
            self.assertEqual(len(losses[version]), 6, version)
            self.assertTrue(list(output.rglob("*.safetensors")), version)
        self.assertEqual(len({tuple(each) for each in losses.values()}), 1, losses)

    def test_a_project_builds_against_it(self):
        python = next(self.each_python())[1]
        # A library that was bundled is found by the path inside libanabatic.so.
        build, model, text = self.scratch / "consumer", self.scratch / "consumer_model", self.scratch / "text.txt"
        run("cmake", "-S", ROOT / "tests/integration/consumer", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_PREFIX_PATH={run(python, '-I', '-m', 'anabatic', '--cmake-dir').strip()}")
        run("cmake", "--build", build)
        shutil.copy(ROOT / "README.md", text)
        run(python, "-I", "-m", "anabatic", "tokenize", "--train", text, "--vocab_size", "300", "--output", model)
        (model / "config.json").write_text(json.dumps(tiny.CONFIG | {"vocab_size": 300}))
        self.assertIn("step 3", run(build / "consumer", model / "config.json", text, self.scratch / "consumer_run"))

    def test_what_is_too_old_refuses_it(self):
        python = next(self.each_python())[1]
        for tag, other in (("cp310", "cp399"), ("manylinux_2_", "manylinux_9_")):
            renamed = self.scratch / self.wheel.name.replace(tag, other)
            shutil.copy(self.wheel, renamed)
            self.refuses(python, renamed)
        for version in [version for version in self.found if version < VERSIONS[0]]:
            place = self.scratch / f"old{version[1]}"
            run(self.found[version], "-I", "-m", "venv", place)
            self.refuses(place / "bin/python", self.wheel)

    def refuses(self, python, wheel):
        done = subprocess.run([str(python), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", str(wheel)], capture_output=True,
                              text=True, env=CLEAN)
        self.assertNotEqual(done.returncode, 0, wheel)
        self.assertIn("is not a supported wheel on this platform", done.stdout + done.stderr)

    def test_with_torch(self):
        place = self.scratch / "with_torch"
        run(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", place, self.wheel)
        run(sys.executable, "-c", WITH_TORCH, place, env=CLEAN | {"PYTHONPATH": str(place)})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
