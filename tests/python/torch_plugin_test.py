# SPDX-License-Identifier: Apache-2.0
"""Operators of plugins in torch: values, gradients, autocast, compile, what is refused."""
import os
import pathlib
import unittest

import torch
import torch._dynamo.testing
from torch.nn import functional

import anabatic as ab
import anabatic.torch

PLUGINS = pathlib.Path(os.environ["ANABATIC_TEST_PLUGINS"])
OPS = anabatic.torch.load_plugin(PLUGINS / "good.so")
torch.manual_seed(0)


def swiglu(gate, up):
    return functional.silu(gate) * up


def norm(x, weight, epsilon=1e-6):
    scale = torch.rsqrt((x * x).mean(-1) + epsilon)
    return x * scale[:, None] * weight, scale


def gradients(function, tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((output.float() * torch.arange(output.numel()).view(output.shape).cos()).sum() for output in outputs).backward()
    return [output.detach() for output in outputs], [leaf.grad for leaf in leaves]


class Plugin(unittest.TestCase):

    def expect_close(self, ours, theirs, tensors):
        for got, want in zip(sum(gradients(ours, tensors), []), sum(gradients(theirs, tensors), [])):
            self.assertEqual(got.dtype, want.dtype)
            torch.testing.assert_close(got, want)

    def test_values_and_gradients_are_those_of_torch(self):
        for rows in (1, 37):
            self.expect_close(torch.ops.anabatic_plugin.my_swiglu, swiglu, [torch.randn(rows, 50), torch.randn(rows, 50)])
            self.expect_close(OPS["scaled_norm"], norm, [torch.randn(rows, 50), torch.rand(50)])
        self.expect_close(OPS["square_relu"], lambda x: functional.relu(x).square(), [torch.randn(4, 9)])

    def test_attributes_are_keywords_with_defaults(self):
        x, weight = torch.randn(5, 8), torch.rand(8)
        torch.testing.assert_close(OPS["scaled_norm"](x, weight, epsilon=0.5)[0], norm(x, weight, 0.5)[0])
        torch.testing.assert_close(OPS["scaled_norm"](x, weight, 0.5)[0], norm(x, weight, 0.5)[0])
        torch.testing.assert_close(OPS["scaled_norm"](x, weight)[0], norm(x, weight)[0])
        self.assertIn("float epsilon", str(torch.ops.anabatic_plugin.scaled_norm.default._schema))

    def test_takes_bfloat16_any_strides_and_no_rows(self):
        gate, up = torch.randn(12, 40).bfloat16(), torch.randn(12, 40).bfloat16()
        got = OPS["my_swiglu"](gate, up)
        self.assertEqual(got.dtype, torch.bfloat16)
        torch.testing.assert_close(got, swiglu(gate.float(), up.float()).bfloat16())
        wide = torch.randn(20, 7)
        torch.testing.assert_close(OPS["my_swiglu"](wide.t(), wide[:, 1:].t().clone().new_ones(7, 20)), functional.silu(wide.t()))
        torch.testing.assert_close(OPS["my_swiglu"](wide.flatten()[3:3 + 60].view(3, 20), torch.ones(3, 20)),
                                   functional.silu(wide.flatten()[3:63].view(3, 20)))
        self.assertEqual(OPS["my_swiglu"](torch.empty(0, 5), torch.empty(0, 5)).shape, (0, 5))

    def test_indices_are_checked(self):
        x, index = torch.randn(10, 4), torch.randint(0, 10, (7,))
        torch.testing.assert_close(OPS["pick_rows"](x, index), x[index])
        with self.assertRaisesRegex(ab.InvalidArgument, r"expected index in \[0, 9\], got 10"):
            OPS["pick_rows"](x, torch.tensor([10]))

    def test_opcheck(self):
        torch.library.opcheck(torch.ops.anabatic_plugin.my_swiglu_with_saved.default,
                              (torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)))
        torch.library.opcheck(torch.ops.anabatic_plugin.scaled_norm_with_saved.default,
                              (torch.randn(5, 6, requires_grad=True), torch.rand(6, requires_grad=True)))

    def test_compiles_once_for_several_lengths(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda gate, up: OPS["my_swiglu"](gate * 2, up), backend=counter, dynamic=True)
        for rows in (5, 37, 64):
            self.expect_close(compiled, lambda gate, up: swiglu(gate * 2, up), [torch.randn(rows, 16), torch.randn(rows, 16)])
        self.assertEqual(counter.frame_count, 1)

    def test_refuses_what_does_not_fit(self):
        x = torch.randn(4, 6)
        with self.assertRaisesRegex(ab.InvalidArgument, r"\[my_swiglu\] expected up \[R,F\] with 6 in dimension 1"):
            OPS["my_swiglu"](x, x[:, :3])
        with self.assertRaisesRegex(ab.InvalidArgument, r"\[my_swiglu\] gate: expected float32 or bfloat16, got float16"):
            OPS["my_swiglu"](x.half(), x.half())
        with self.assertRaisesRegex(ab.InvalidArgument, r"\[pick_rows\] index: expected int32 or int64, got int16"):
            OPS["pick_rows"](x, torch.zeros(3, dtype=torch.int16))
        with self.assertRaisesRegex(ab.Unsupported, "expected a dense tensor on the CPU"):
            OPS["my_swiglu"](x.to_sparse(), x)
        leaf = x.clone().requires_grad_()
        first, = torch.autograd.grad(OPS["my_swiglu"](leaf, x).sum(), leaf, create_graph=True)
        with self.assertRaisesRegex(ab.Unsupported, "first derivatives alone"):
            first.sum().backward()

    def test_loads_once(self):
        self.assertEqual(anabatic.torch.load_plugin(PLUGINS / "good.so"), OPS)
        with self.assertRaisesRegex(ab.InvalidArgument, "has an op my_swiglu too"):
            anabatic.torch.load_plugin(PLUGINS / "model_ops.so")


if __name__ == "__main__":
    unittest.main()
