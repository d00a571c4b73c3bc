# SPDX-License-Identifier: Apache-2.0
"""The operators of anabatic.torch against torch's own: values, gradients, autocast, compile, what is refused."""
import functools
import os
import sys
import unittest
import warnings

import torch
import torch._dynamo.testing
from torch.nn import functional

import tiny  # noqa: F401
from anabatic.torch import ops
import anabatic as ab

torch.manual_seed(0)
EXPERTS, TOP_K, WIDTH, INNER, VOCABULARY = 8, 2, 64, 96, 200


def swiglu_mlp(x, gate_up, down):
    gate, up = functional.linear(x, gate_up).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, down)


def experts(x, gate_up, down, weights, index):
    out = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, weights.dtype))
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(index == expert)
        rows = swiglu_mlp(x[tokens], gate_up[expert], down[expert]) * weights[tokens, places, None]
        out = out.index_add(0, tokens, rows.to(out.dtype))
    return out


def rotated(x, table):
    """Each of two heads: its first columns by the angles of its row."""
    half = table.shape[1] // 2
    cosine, sine = table[:, None, :half], table[:, None, half:]
    heads = x.unflatten(1, (2, -1))
    a, b = heads[..., :half], heads[..., half:2 * half]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, heads[..., 2 * half:]], -1).flatten(1).to(x.dtype)


def attention_with_sinks(q, k, v, sinks, mask):
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = (q @ k.transpose(2, 3) * q.shape[-1]**-0.5).masked_fill(~mask, float("-inf"))
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return (torch.cat([scores, column.to(scores.dtype)], -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)


def clamped_experts(x, gate_up, down, weights, gate_bias, up_bias, down_bias, index):
    """Experts as gpt_oss has them."""
    bias = torch.stack([gate_bias, up_bias], -1).flatten(1)
    out = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, weights.dtype))
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(index == expert)
        products = x[tokens] @ gate_up[expert] + bias[expert]
        gate, up = products[:, ::2].clamp(max=7.0), products[:, 1::2].clamp(-7.0, 7.0)
        rows = ((up + 1) * gate * torch.sigmoid(1.702 * gate)).to(x.dtype) @ down[expert] + down_bias[expert]
        out = out.index_add(0, tokens, (rows * weights[tokens, places, None]).to(out.dtype))
    return out


def index_of(tokens, experts_there=EXPERTS, top_k=TOP_K):
    return torch.stack([torch.randperm(experts_there)[:top_k] for _ in range(tokens)]) if tokens else torch.zeros((0, top_k), dtype=torch.int64)


class Case:
    """One operator: ours and torch's, as functions of the tensors that have gradients."""

    def __init__(self, name, ours, theirs, tensors):
        self.name, self.ours, self.theirs, self.tensors = name, ours, theirs, tensors


def case_of_columns(x, index):
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1))
    tensors = [x, draw(EXPERTS, WIDTH, 2 * INNER) / 8, draw(EXPERTS, INNER, WIDTH) / 10, draw(index.shape).sigmoid(),
               draw(EXPERTS, INNER) / 4, draw(EXPERTS, INNER) / 4, draw(EXPERTS, WIDTH) / 4]

    def ours(x, gate_up, down, weights, gate_bias, up_bias, down_bias):
        return ops.moe_experts(x, gate_up, down, index, weights, activation="swiglu_clamped", alpha=1.702, limit=7.0, stacks="columns",
                               gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias)

    return Case("moe_experts by columns", ours, lambda *tensors: clamped_experts(*tensors, index), tensors)


def cases(tokens=48):
    torch.manual_seed(0)  # the same for each test, whatever ran before it
    index = index_of(tokens)
    labels = torch.randint(0, VOCABULARY, (tokens,))
    labels[::5] = -100
    x = torch.randn(tokens, WIDTH)
    offsets = torch.tensor([0, 5, 5, 20, tokens], dtype=torch.int32) if tokens >= 20 else None
    begin, end = torch.zeros(2, 16, dtype=torch.int32), torch.arange(1, 17, dtype=torch.int32).expand(2, 16)
    begin[1, 6:] = 6  # a second document
    mask = torch.stack([torch.tensor([[b <= j < e for j in range(16)] for b, e in zip(begin[n], end[n])]) for n in range(2)])[:, None]
    window = mask & (torch.arange(16) > torch.arange(16)[:, None] - 5)
    angles = torch.randn(tokens, 12)
    table = torch.cat([angles.cos(), angles.sin()], -1)
    found = [
        Case("rms_norm", lambda x, w: ops.rms_norm(x, w, 1e-5), lambda x, w: functional.rms_norm(x, (WIDTH,), w, 1e-5), [x, torch.rand(WIDTH) + 0.5]),
        Case("add_rms_norm", lambda x, r, w: sum(ops.add_rms_norm(x, r, w, 1e-5)),
             lambda x, r, w: x + r + functional.rms_norm(x + r, (WIDTH,), w, 1e-5), [x, torch.randn(tokens, WIDTH), torch.rand(WIDTH) + 0.5]),
        Case("swiglu", ops.swiglu, lambda gate, up: functional.silu(gate) * up, [torch.randn(tokens, INNER), torch.randn(tokens, INNER)]),
        Case("mlp", ops.mlp, swiglu_mlp, [x, torch.randn(2 * INNER, WIDTH) / 8, torch.randn(WIDTH, INNER) / 10]),
        Case("gated_mlp", ops.gated_mlp, lambda x, gate, up, down: swiglu_mlp(x, torch.cat([gate, up]), down),
             [x, torch.randn(INNER, WIDTH) / 8, torch.randn(INNER, WIDTH) / 8, torch.randn(WIDTH, INNER) / 10]),
        Case("linear", ops.linear, functional.linear, [x, torch.randn(INNER, WIDTH) / 8]),
        Case("moe_experts", lambda x, a, b, w: ops.moe_experts(x, a, b, index, w), lambda x, a, b, w: experts(x, a, b, w, index),
             [x, torch.randn(EXPERTS, 2 * INNER, WIDTH) / 8, torch.randn(EXPERTS, WIDTH, INNER) / 10, torch.rand(tokens, TOP_K)]),
        Case("rope", lambda x: ops.rope(x, table, WIDTH // 2), lambda x: rotated(x, table), [x]),
        Case("linear_cross_entropy", lambda x, w: ops.linear_cross_entropy(x, w, labels, 0.25),
             lambda x, w: 0.25 * functional.cross_entropy(functional.linear(x, w).float(), labels, reduction="sum"),
             [x, torch.randn(VOCABULARY, WIDTH) / 8]),
    ]
    found.append(case_of_columns(x, index))
    if tokens >= 20:
        found += [
            Case("grouped_linear", lambda x, w: ops.grouped_linear(x, w, offsets),
                 lambda x, w: torch.cat([functional.linear(x[a:b], w[e]) for e, (a, b) in enumerate(zip(offsets[:-1], offsets[1:]))]),
                 [x, torch.randn(4, 40, WIDTH) / 8]),
            Case("attention", lambda q, k, v: ops.attention(q, k, v, begin, end),
                 lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2),
                 [torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 12)]),
            Case("attention", lambda q, k, v, sinks: ops.attention(q, k, v, begin, end, sinks=sinks, window=5),
                 lambda q, k, v, sinks: attention_with_sinks(q, k, v, sinks, window),
                 [torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 12), torch.randn(4)]),
        ]
    return found


def run(function, tensors, weights=None):
    """Result and gradients, for a random but fixed gradient of the result."""
    tensors = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*tensors)
    generator = torch.Generator().manual_seed(5)
    (out.float() * torch.randn(out.shape, generator=generator)).sum().backward()
    return [out.detach(), *(tensor.grad for tensor in tensors)]


def distance(found, exact):
    """The norm of the difference, relative to that of what is exact."""
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


class Values(unittest.TestCase):
    # Sums of at most 200 terms: their bound is that many roundings of fp32, and few come near it.
    BOUND = 200 * 2.0**-24

    def test_every_operator_and_operand_with_a_gradient_has_a_case(self):
        found = {}
        for case in cases():
            name = case.name.split()[0]
            found[name] = max(found.get(name, 0), len(case.tensors))
        self.assertEqual(found, {op.name: len(op.gradients) for op in ops.OPS})

    def test_equal_torch_in_double_within_the_bound_of_fp32(self):
        for case in cases():
            exact = run(case.theirs, [tensor.double() for tensor in case.tensors])
            for place, (found, want) in enumerate(zip(run(case.ours, case.tensors), exact)):
                self.assertEqual(found.dtype, torch.float32)
                self.assertLess(distance(found, want), self.BOUND, (case.name, place))

    def test_autocast_is_no_further_from_fp32_than_torchs_own(self):
        for case in cases():
            exact = run(case.theirs, [tensor.double() for tensor in case.tensors])
            with torch.autocast("cpu", torch.bfloat16):
                ours, theirs = run(case.ours, case.tensors), run(case.theirs, case.tensors)
            for place, (a, b, want) in enumerate(zip(ours, theirs, exact)):
                self.assertTrue(place == 0 or a.dtype == torch.float32)  # as its parameter
                self.assertLess(distance(a, want), max(1.25 * distance(b, want), self.BOUND), (case.name, place))

    def test_bf16_tensors(self):
        for case in cases():
            tensors = [tensor.to(torch.bfloat16) for tensor in case.tensors]
            exact = run(case.theirs, [tensor.double() for tensor in tensors])
            for place, (a, b, want) in enumerate(zip(run(case.ours, tensors), run(case.theirs, tensors), exact)):
                self.assertTrue(place == 0 or a.dtype == torch.bfloat16)
                self.assertLess(distance(a, want), max(1.25 * distance(b, want), 2.0**-7), (case.name, place))

    def test_bits_are_equal_for_any_number_of_threads(self):
        before = torch.get_num_threads()
        try:
            for case in cases():
                results = []
                for threads in (1, 2, 3, 1):
                    torch.set_num_threads(threads)
                    results.append(run(case.ours, case.tensors))
                for other in results[1:]:
                    self.assertTrue(all(torch.equal(a, b) for a, b in zip(results[0], other)), case.name)
        finally:
            torch.set_num_threads(before)

    def test_strided_and_misaligned_tensors(self):
        for case in cases():
            want = run(case.ours, case.tensors)
            odd = []
            for tensor in case.tensors:
                room = torch.empty(tensor.numel() + 1)
                odd.append(room[1:].view(tensor.shape).copy_(tensor))
            strided = [torch.stack([tensor, tensor], -1)[..., 0] for tensor in case.tensors]
            for tensors in (odd, strided):
                leaves = [tensor.requires_grad_() for tensor in tensors]
                for leaf in leaves:
                    leaf.grad = None
                out = case.ours(*leaves)
                (out.float() * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
                for a, b in zip([out.detach(), *(leaf.grad for leaf in leaves)], want):
                    self.assertTrue(torch.equal(a, b), case.name)

    def test_no_rows(self):
        for case in cases(0):
            found = run(case.ours, case.tensors)
            for tensor, gradient in zip(case.tensors, found[1:]):
                self.assertEqual(gradient.shape, tensor.shape)
                self.assertTrue((gradient == 0).all(), case.name)

    def test_experts_without_rows_have_zero_gradients(self):
        index = torch.zeros((5, 1), dtype=torch.int64)
        _, _, gate_up, down, _ = run(lambda x, a, b, w: ops.moe_experts(x, a, b, index, w),
                                     [torch.randn(5, 8), torch.randn(3, 12, 8), torch.randn(3, 8, 6), torch.rand(5, 1)])
        self.assertTrue((gate_up[1:] == 0).all() and (down[1:] == 0).all() and (gate_up[0] != 0).any())

    def test_nan_goes_through(self):
        for case in cases():
            tensors = [tensor.clone() for tensor in case.tensors]
            tensors[0].view(-1)[WIDTH + 7] = float("nan")
            self.assertTrue(run(case.ours, tensors)[0].isnan().any(), case.name)

    def test_gradients_of_any_subset(self):
        for case in cases():
            want = run(case.ours, case.tensors)
            for subset in range(1, 1 << len(case.tensors)):
                tensors = [t.detach().clone().requires_grad_(bool(subset >> n & 1)) for n, t in enumerate(case.tensors)]
                out = case.ours(*tensors)
                (out.float() * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
                for n, tensor in enumerate(tensors):
                    self.assertEqual(tensor.grad is not None, bool(subset >> n & 1))
                    if tensor.grad is not None:
                        self.assertLess(distance(tensor.grad, want[n + 1]), self.BOUND, (case.name, subset, n))
            with torch.inference_mode():
                self.assertTrue(torch.equal(case.ours(*case.tensors), want[0]), case.name)


class Torch(unittest.TestCase):
    def test_opcheck(self):
        kb, ke = torch.zeros(32, dtype=torch.int32), torch.arange(1, 33, dtype=torch.int32)
        x = torch.randn(32, WIDTH, requires_grad=True)
        weight = torch.rand(WIDTH, requires_grad=True)
        stack = (torch.randn(EXPERTS, 2 * INNER, WIDTH, requires_grad=True), torch.randn(EXPERTS, WIDTH, INNER, requires_grad=True))
        calls = {
            "rms_norm": (x, weight, 1e-6), "add_rms_norm": (x, weight, torch.randn(32, WIDTH, requires_grad=True), 1e-6),
            "swiglu": (x, torch.randn(32, WIDTH)),
            "mlp": (x, torch.randn(2 * INNER, WIDTH, requires_grad=True), torch.randn(WIDTH, INNER, requires_grad=True), "swiglu"),
            "gated_mlp": (x, torch.randn(INNER, WIDTH, requires_grad=True), torch.randn(INNER, WIDTH), torch.randn(WIDTH, INNER, requires_grad=True),
                          "swiglu"),
            "linear": (x, torch.randn(INNER, WIDTH, requires_grad=True)),
            "moe_experts": (x, *(one.detach().mT.contiguous().requires_grad_() for one in stack), index_of(32),
                            torch.rand(32, TOP_K, requires_grad=True), torch.rand(EXPERTS, INNER, requires_grad=True), torch.rand(EXPERTS, INNER),
                            torch.rand(EXPERTS, WIDTH, requires_grad=True), "swiglu_clamped", 1.5, 1.0, "columns"),
            "grouped_linear": (x, torch.randn(2, 40, WIDTH, requires_grad=True), torch.tensor([0, 7, 32], dtype=torch.int32)),
            "rope": (x, torch.rand(32, 16), 16),
            "attention": (x, x.detach()[:, :32].requires_grad_(), x.detach()[:, :32].requires_grad_(), kb, ke, None, 4, 2, 0.25, 0),
            "linear_cross_entropy": (x, torch.randn(VOCABULARY, WIDTH, requires_grad=True), torch.randint(0, VOCABULARY, (32,)), torch.tensor(0.5)),
        }
        self.assertEqual(set(calls), {op.name for op in ops.OPS})
        for name, arguments in calls.items():
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Calls that a plain tensor makes want no gradient: the mask of operands is the caller's.
                needs = sum(1 << n for n, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.requires_grad)
                products = ("",) if next(op for op in ops.OPS if op.name == name).has_products else ()
                torch.library.opcheck(getattr(torch.ops.anabatic, name).default, (*arguments, *products, needs))

    def test_compiles_whole_and_for_any_number_of_rows(self):
        for case in cases():
            if case.name == "attention":
                continue  # its ranges are of one length
            torch._dynamo.reset()
            counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

            def function(*tensors, case=case):
                return case.ours(*tensors) * 2

            compiled = torch.compile(function, backend=counter, fullgraph=True)
            for found, want in zip(run(compiled, case.tensors), run(function, case.tensors)):
                self.assertTrue(torch.equal(found, want), case.name)
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        weights = [torch.randn(EXPERTS, 2 * INNER, WIDTH), torch.randn(EXPERTS, WIDTH, INNER)]
        compiled = torch.compile(lambda x, a, b, w, index: ops.moe_experts(x, a, b, index, w), backend=counter, fullgraph=True)
        for tokens in (48, 50, 7, 130):
            index = index_of(tokens)
            tensors = [torch.randn(tokens, WIDTH), *weights, torch.rand(tokens, TOP_K)]
            want = run(lambda x, a, b, w: ops.moe_experts(x, a, b, index, w), tensors)
            for a, b in zip(run(lambda x, a, b, w: compiled(x, a, b, w, index), tensors), want):
                self.assertTrue(torch.equal(a, b), tokens)
        self.assertLessEqual(counter.frame_count, 2)

    def test_a_forked_child_computes_on_one_thread(self):
        case = next(case for case in cases() if case.name == "moe_experts")
        want = run(case.ours, case.tensors)[0]
        child = os.fork()
        if child == 0:
            with torch.no_grad():
                os._exit(0 if torch.equal(case.ours(*case.tensors), want) else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.x, self.weight = torch.randn(4, WIDTH), torch.ones(WIDTH)
        self.stack = [torch.randn(EXPERTS, 2 * INNER, WIDTH), torch.randn(EXPERTS, WIDTH, INNER)]

    def refuse(self, kind, text, function, *arguments, **options):
        with self.assertRaisesRegex(kind, text):
            function(*arguments, **options)

    def test_types_and_widths(self):
        self.refuse(ValueError, r"\[rms_norm\] x: expected float32, bfloat16, int32 or int64, got float16", ops.rms_norm, self.x.half(), self.weight)
        self.refuse(ValueError, r"\[rms_norm\] x: .*got complex64", ops.rms_norm, self.x.to(torch.complex64), self.weight)
        self.refuse(ValueError, r"\[rms_norm\].*weight", ops.rms_norm, self.x, torch.ones(WIDTH - 1))
        self.refuse(NotImplementedError, "expected a dense tensor on the CPU, got .* on meta", ops.rms_norm, self.x.to("meta"), self.weight)
        self.refuse(NotImplementedError, "expected a dense tensor", ops.rms_norm, self.x.to_sparse(), self.weight)
        self.refuse(ValueError, r"\[mlp\].*down", ops.mlp, self.x, self.stack[0][0], self.stack[1][0][:, :5])

    def test_indices(self):
        weights = torch.rand(4, 2)
        for index in (torch.full((4, 2), EXPERTS), torch.full((4, 2), -1)):
            self.refuse(ValueError, r"\[moe_experts\].*index", ops.moe_experts, self.x, *self.stack, index, weights)
        self.refuse(ValueError, r"\[moe_experts\].*index", ops.moe_experts, self.x, *self.stack, index_of(4, 20, 9) % EXPERTS, torch.rand(4, 9))
        self.refuse(ValueError, r"\[linear_cross_entropy\].*labels", ops.linear_cross_entropy, self.x, torch.randn(5, WIDTH), torch.tensor([1, 2, 5, 0]))

    def test_second_derivatives(self):
        x = self.x.clone().requires_grad_()
        gradient, = torch.autograd.grad(ops.rms_norm(x, self.weight).square().sum(), x, create_graph=True)
        self.refuse(NotImplementedError, "first derivatives alone", gradient.sum().backward)

    def test_vmap_and_forward_mode(self):
        self.refuse(NotImplementedError, "torch.vmap", torch.vmap(lambda x: ops.rms_norm(x, self.weight)), torch.randn(3, 4, WIDTH))
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(self.x.requires_grad_(), torch.ones_like(self.x))
            self.refuse((RuntimeError, NotImplementedError), "", ops.rms_norm, x, self.weight)

    def test_autocast_to_fp16(self):
        with torch.autocast("cpu", torch.float16):
            self.refuse(NotImplementedError, "expected autocast to bfloat16, got torch.float16", ops.mlp, self.x, self.stack[0][0], self.stack[1][0])

    def test_errors_are_those_of_the_package(self):
        self.refuse(ab.InvalidArgument, "rms_norm", ops.rms_norm, self.x, torch.ones(3))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
