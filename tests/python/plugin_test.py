# SPDX-License-Identifier: Apache-2.0
"""Plugins from Python: runs that use them, and what cannot be loaded."""
import os
import pathlib
import tempfile
import unittest

import tiny
import anabatic as ab

PLUGINS = pathlib.Path(os.environ["ANABATIC_TEST_PLUGINS"])
REPLACE = {"segment": "experts", "op": "swiglu", "with": "my_swiglu"}


class Plugin(unittest.TestCase):

    def losses(self, **more):
        with tempfile.TemporaryDirectory() as folder:
            run = ab.Training(tiny.run_settings(folder) | {"train.steps": 3} | more)
            return [result.loss for result in run]

    def test_trains_with_its_ops(self):
        plain = self.losses()
        other = self.losses(**{"plugins": [PLUGINS / "model_ops.so"], "model.replace": [REPLACE]})
        self.assertEqual(len(other), 3)
        for a, b in zip(plain, other):
            self.assertAlmostEqual(a, b, 5)

    def test_lists_its_ops(self):
        found = ab.load_plugin(PLUGINS / "good.so")
        self.assertIn("my_swiglu", [op["name"] for op in found["ops"]])
        self.assertEqual(found, ab.info(PLUGINS / "good.so"))

    def test_refuses_what_is_no_plugin(self):
        with self.assertRaisesRegex(ab.InvalidArgument, "nothing.so is no plugin"):
            ab.load_plugin(PLUGINS / "nothing.so")
        with self.assertRaisesRegex(ab.InvalidArgument, "expected a shared library, found no file .*missing.so"):
            ab.load_plugin(PLUGINS / "missing.so")
        with self.assertRaisesRegex(ab.InvalidArgument, "expected a shared library, got .*good.c"):
            ab.load_plugin(PLUGINS / "good.c")
        with tempfile.TemporaryDirectory() as folder:
            settings = tiny.run_settings(folder) | {"plugins": [str(PLUGINS / "missing.so")]}
            with self.assertRaisesRegex(ab.InvalidArgument, "found no file .*missing.so"):
                ab.Training(settings)
            with self.assertRaisesRegex(ab.InvalidArgument, "model.replace: expected {segment: mlp, op: swiglu, with: my_swiglu}"):
                ab.Training(settings | {"model.replace": [{"segment": "experts", "op": "swiglu"}]})
            with self.assertRaisesRegex(ab.InvalidArgument, r"model.replace: expected a list, got one map; put it in \[ \]$"):
                ab.Training(settings | {"model.replace": REPLACE})
            with self.assertRaisesRegex(ab.InvalidArgument, "got the key 'scale'; attributes of your op have the defaults of its table"):
                ab.Training(settings | {"model.replace": [REPLACE | {"scale": "2"}]})


if __name__ == "__main__":
    unittest.main()
