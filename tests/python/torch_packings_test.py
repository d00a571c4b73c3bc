# SPDX-License-Identifier: Apache-2.0
"""Packings that AdamW keeps: bits are those without them, however a parameter changes, and an unseen change is refused."""
import copy
import functools
import gc
import pickle
import sys
import threading
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anabatic as ab
import anabatic.torch
import torch_tiny as tiny
from anabatic.torch import AdamW, _packings, ops
from anabatic.torch._register import _HOST

TOKENS, EXPERTS, WIDTH, INNER, WORDS = 40, 6, 48, 32, 70
STALE = r": expected the weight that was packed, got one that has changed without its version counter; call optimizer.refresh\(\)"


class Net(nn.Module):
    """Every operator with weights; the head's is tied to a linear layer's."""

    def __init__(self, seed=0):
        super().__init__()
        draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        self.experts, self.experts_down = nn.Parameter(draw(EXPERTS, 2 * INNER, WIDTH) / 7), nn.Parameter(draw(EXPERTS, WIDTH, INNER) / 6)
        self.grouped = nn.Parameter(draw(2, WIDTH, WIDTH) / 7)
        self.gate_up, self.down = nn.Parameter(draw(2 * INNER, WIDTH) / 7), nn.Parameter(draw(WIDTH, INNER) / 6)
        self.gate, self.up = nn.Parameter(draw(INNER, WIDTH) / 7), nn.Parameter(draw(INNER, WIDTH) / 7)
        self.head, self.norm = nn.Parameter(draw(WORDS, WIDTH) / 7), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, seed=0):
        generator = torch.Generator().manual_seed(seed)
        index = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(len(x))])
        weights, labels = torch.rand(len(x), 2, generator=generator), torch.randint(WORDS, (len(x),), generator=generator)
        x = x + ops.moe_experts(ops.rms_norm(x, self.norm), self.experts, self.experts_down, index, weights)
        x = x + ops.grouped_linear(x, self.grouped, torch.tensor([0, len(x) // 3, len(x)]))
        x = x + ops.mlp(x, self.gate_up, self.down) + ops.gated_mlp(x, self.gate, self.up, self.down)
        return ops.linear_cross_entropy(x, self.head, labels, 1 / len(x)) + ops.linear(x, self.head).float().square().mean()


def result(net, tokens=TOKENS, seed=0, products=True):
    """Loss and gradients, which do not stay."""
    x = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=products):
        loss = net(x, seed)
    return [loss.detach(), *torch.autograd.grad(loss, [x, *net.parameters()])]


class Packs:
    """Counts packings that are made for stores."""

    def __enter__(self):
        layers, self.count = _HOST.layers(), 0
        outer = self

        class Counting:
            def __getattr__(self, name):
                return getattr(layers, name)

            def pack(self, *arguments):
                outer.count += 1
                layers.pack(*arguments)

        self.layers = layers
        _HOST.made = Counting()
        return self

    def __exit__(self, *_):
        _HOST.made = self.layers


class Kept(unittest.TestCase):
    FORMS = 2 * 10 + 1  # forward and backward, of gate and up of two layers apart, of six weights more; the head's loss reads a bf16 copy

    def same(self, got, want):
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, want)))

    def as_without(self, net, **options):
        """A copy of the model has no packings."""
        got = result(net, **options)
        self.same(got, result(copy.deepcopy(net), **options))
        return got

    def test_training_is_equal_to_the_bit_and_packs_once_a_step(self):
        for products in (True, False):
            nets, counts = [], []
            for keep in (True, False):
                net = Net()
                optimizer = AdamW(net.parameters(), lr=1e-2, keep_packings=keep, max_norm=1.0)
                self.assertEqual(optimizer.keep_packings, keep)
                for step in range(3):
                    with Packs() as packs:
                        for micro in range(4):
                            loss, _, *gradients = result(net, TOKENS + micro, 4 * step + micro, products)
                            for parameter, gradient in zip(net.parameters(), gradients):
                                parameter.grad = gradient if micro == 0 else parameter.grad + gradient
                    counts.append((keep, packs.count))
                    optimizer.step()
                nets.append([loss, *(parameter.detach() for parameter in net.parameters())])
                size = 2 if products else 4
                padded = sum(2 * size * p.numel() for p in net.parameters() if p.dim() > 1)
                self.assertEqual(optimizer.packing_bytes > 0, keep)
                if keep:  # twice each weight, and what rounds up panels
                    self.assertGreaterEqual(optimizer.packing_bytes, padded)
                    self.assertLess(optimizer.packing_bytes, 1.2 * padded)
            self.same(*nets)
            self.assertEqual(counts, [(True, self.FORMS if products else self.FORMS - 1)] * 3 + [(False, 0)] * 3)

    def test_every_counted_change_is_seen(self):
        other = Net(7)
        changes = {
            "in place": lambda net: net.experts.mul_(1.5),
            "one element": lambda net: net.experts[3, 5].__setitem__(7, 2.0),
            "a view": lambda net: net.head.view(-1)[:3].add_(1),
            "copy_": lambda net: net.down.copy_(other.down),
            "foreach": lambda net: torch._foreach_add_([net.gate_up, net.gate], 0.25),
            "out=": lambda net: torch.add(net.up, 1, out=net.up),
            "load_state_dict": lambda net: net.load_state_dict(other.state_dict()),
            "assign": lambda net: net.load_state_dict(copy.deepcopy(other.state_dict()), assign=True),
            "init": lambda net: nn.init.normal_(net.grouped),
            "another parameter": lambda net: setattr(net, "gate", nn.Parameter(torch.rand_like(net.gate))),
        }
        for name, change in changes.items():
            for guard in (torch.no_grad, torch.inference_mode):
                if name in ("assign", "another parameter") and guard is torch.inference_mode:
                    continue
                with self.subTest(name, guard=guard.__name__):
                    net = Net()
                    optimizer = AdamW(net.parameters(), keep_packings=True)
                    before = self.as_without(net)
                    with guard():
                        change(net)
                    self.assertFalse(torch.equal(self.as_without(net)[0], before[0]))
                    self.assertGreater(optimizer.packing_bytes, 0)

    def uncounted(self):
        """Changes that no counter shows, by name."""
        def fused(net):
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            version = net.experts._version
            optimizer.step()
            if net.experts._version != version:  # torch has learned to count
                raise unittest.SkipTest("the counter rises")

        return {
            ".data": lambda net: net.experts.data.mul_(1 + 2.0**-20),
            "one matrix": lambda net: net.experts.data[4].add_(1),
            "NumPy": lambda net: net.experts.detach().numpy().__imul__(0.5),
            "NaN": lambda net: net.experts.data.fill_(float("nan")),
            "fused AdamW": fused,
        }

    def test_an_uncounted_change_is_refused_until_refresh(self):
        for name, change in self.uncounted().items():
            with self.subTest(name):
                net = Net()
                optimizer = AdamW(net.named_parameters(), keep_packings=True)
                result(net)
                change(net)
                with self.assertRaisesRegex(ab.InvalidArgument, rf"\[AdamW\] experts \[{EXPERTS}, {2 * INNER}, {WIDTH}\]" + STALE):
                    result(net)
                with self.assertRaisesRegex(ab.InvalidArgument, STALE):  # not only the first time
                    result(net)
                optimizer.refresh()
                if name == "NaN":
                    self.assertTrue(result(net)[0].isnan())
                else:
                    self.as_without(net)

    def test_an_uncounted_change_between_forward_and_backward(self):
        net = Net()
        optimizer = AdamW(net.parameters(), keep_packings=True)
        loss = net(torch.randn(TOKENS, WIDTH))
        net.down.data.add_(1)
        with self.assertRaisesRegex(ab.InvalidArgument, "parameter 4 of group 0 .*" + STALE):
            loss.backward()
        optimizer.refresh()

    def test_uncounted_changes_with_refresh(self):
        net = Net()
        optimizer = AdamW(net.parameters(), keep_packings=True)
        before = result(net)
        for parameter in net.parameters():
            parameter.data.add_(2.0**-6)
        optimizer.refresh()
        self.assertFalse(torch.equal(self.as_without(net)[0], before[0]))

    def test_optimizers_own_steps_and_states(self):
        net = Net()
        optimizer = AdamW(net.parameters(), lr=1e-2, keep_packings=True)
        state = copy.deepcopy(optimizer.state_dict())
        for step in range(2):
            _, _, *gradients = self.as_without(net)
            for parameter, gradient in zip(net.parameters(), gradients):
                parameter.grad = gradient
            optimizer.step()
        self.as_without(net)
        net.experts.grad = None  # a step that leaves one alone
        optimizer.step()
        self.as_without(net)
        self.assertGreater(optimizer.packing_bytes, 0)
        optimizer.load_state_dict(state)
        self.assertEqual((optimizer.packing_bytes, optimizer.keep_packings), (0, True))
        with Packs() as packs:
            self.as_without(net)
        self.assertEqual(packs.count, self.FORMS)

    def test_copies_have_stores_of_their_own(self):
        net = Net()
        optimizer = AdamW(net.parameters(), lr=1e-2, keep_packings=True)
        want = result(net)
        for copied, its in (copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))):
            self.assertEqual((its.packing_bytes, its.keep_packings), (0, True))
            self.same(result(copied), want)
            self.assertGreater(its.packing_bytes, 0)
            with torch.no_grad():
                copied.experts.add_(1)
            self.as_without(copied)
            self.same(result(net), want)
            copied.experts.data.add_(1)
            with self.assertRaisesRegex(ab.InvalidArgument, STALE):
                result(copied)
            self.same(result(net), want)

    def test_two_models_share_a_store(self):
        first, second = Net(1), Net(2)
        second.head = first.head
        optimizer = AdamW([*first.parameters(), *(p for p in second.parameters() if p is not first.head)], lr=1e-2, keep_packings=True)
        with Packs() as packs:
            want = [self.as_without(first), self.as_without(second)]
        self.assertEqual(packs.count, 2 * self.FORMS - 3)
        with torch.no_grad():
            first.head.add_(0.5)
        for net, before in zip((first, second), want):
            self.assertFalse(torch.equal(self.as_without(net)[0], before[0]))
        with torch.no_grad():
            first.experts.zero_()
        self.as_without(first), self.as_without(second)

    def test_two_optimizers_keep_one_parameter(self):
        net = Net()
        optimizers = [AdamW(net.parameters(), lr=1e-2, keep_packings=True) for _ in range(2)]
        for optimizer in optimizers:
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.as_without(net)
            optimizer.step()
        self.as_without(net)

    def linear(self, weight, x):
        return ops.linear(x, weight)

    def test_an_address_that_another_tensor_takes(self):
        memory, x = bytearray(4 * 64 * 48), torch.randn(5, 48)
        here = lambda: torch.frombuffer(memory, dtype=torch.float32).view(64, 48)  # noqa: E731
        here().copy_(torch.randn(64, 48))
        parameter = nn.Parameter(here())
        optimizer = AdamW([parameter], keep_packings=True)
        self.linear(parameter, x)
        address = parameter.data_ptr()
        parameter.data = torch.randn(64, 48)  # the counter does not rise
        here().copy_(torch.randn(64, 48))
        other = here()
        self.assertEqual(other.data_ptr(), address)
        for weight in (other, parameter):
            self.assertTrue(torch.equal(self.linear(weight, x), self.linear(weight.detach().clone(), x)))
        optimizer.refresh()  # it finds the new address
        with Packs() as packs:
            self.linear(parameter, x)
        self.assertEqual(packs.count, 1)
        parameter.data = here()
        here().add_(1)
        optimizer.refresh()
        self.assertTrue(torch.equal(self.linear(parameter, x), self.linear(here().clone(), x)))
        parameter.data = torch.zeros(64, 48)
        here().add_(1)
        parameter.data = here()  # address, shape and counter are as they were
        with self.assertRaisesRegex(ab.InvalidArgument, STALE):
            self.linear(parameter, x)

    def test_a_parameter_that_is_gone(self):
        memory, x = bytearray(4 * 64 * 48), torch.randn(5, 48)
        here = lambda: torch.frombuffer(memory, dtype=torch.float32).view(64, 48)  # noqa: E731
        for keep_again in (False, True):
            here().copy_(torch.randn(64, 48))
            optimizer = AdamW([nn.Parameter(here())], keep_packings=True)
            self.linear(optimizer.param_groups[0]["params"][0], x)
            del optimizer
            gc.collect()
            self.assertEqual(len(_packings._STORES), 0)
            here().copy_(torch.randn(64, 48))
            parameter = nn.Parameter(here())
            optimizer = AdamW([parameter], keep_packings=keep_again)
            for _ in range(2):
                self.assertTrue(torch.equal(self.linear(parameter, x), self.linear(here().clone(), x)))
            del optimizer, parameter
            gc.collect()

    def test_parts_of_a_parameter_are_not_it(self):
        net = Net()
        optimizer = AdamW(net.parameters(), keep_packings=True)
        x, index, weights = torch.randn(9, WIDTH), torch.randint(4, (9, 1)), torch.rand(9, 1)
        result(net)
        before = optimizer.packing_bytes
        part = ops.moe_experts(x, net.experts[:4], net.experts_down[:4], index, weights)
        self.assertTrue(torch.equal(part, ops.moe_experts(x, net.experts[:4].clone(), net.experts_down[:4].clone(), index, weights)))
        square = nn.Parameter(torch.randn(48, 48))
        second = AdamW([square], keep_packings=True)
        for weight in (square, square.T):  # one address and shape
            self.assertTrue(torch.equal(ops.linear(x, weight), ops.linear(x, weight.detach().clone())))
        self.assertEqual((optimizer.packing_bytes, second.packing_bytes), (before, 48 * 48 * 4))

    def test_checkpointing_and_compiling(self):
        net = Net()
        optimizer = AdamW(net.parameters(), keep_packings=True)
        x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
        want = result(net)
        with Packs() as packs:
            for reentrant in (True, False):
                leaf = x.clone().requires_grad_()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = checkpoint(net, leaf, 0, use_reentrant=reentrant)
                loss.backward()
                self.same([loss, leaf.grad, *(p.grad for p in net.parameters())], want)
                net.zero_grad()
        self.assertEqual(packs.count, 0)
        torch.manual_seed(0)
        mlp = torch.compile(lambda x, *weights: ops.linear(ops.mlp(x, *weights), net.head), backend="aot_eager", fullgraph=True)
        with Packs() as packs:
            got = mlp(x, net.gate_up, net.down)
        self.assertTrue(torch.equal(got, ops.linear(ops.mlp(x, net.gate_up.detach().clone(), net.down.detach().clone()), net.head.detach().clone())))
        self.assertGreater(packs.count, 0)  # in float32 now
        with torch.no_grad():
            net.down.add_(1)
        self.assertFalse(torch.equal(mlp(x, net.gate_up, net.down), got))
        self.assertGreater(optimizer.packing_bytes, 0)

    def test_threads(self):
        net = Net()
        optimizer = AdamW(net.parameters(), keep_packings=True)
        want, wrong = result(copy.deepcopy(net)), []

        def run():
            for _ in range(10):
                if not all(torch.equal(a, b) for a, b in zip(result(net), want)):
                    wrong.append(1)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for round in range(20):
            optimizer.refresh()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_thread_that_finds_a_buffer_waits_until_it_is_packed(self):
        parameter = nn.Parameter(torch.randn(4, 4))
        weight = _packings.Weight(parameter, "weight")
        begun, may_end, ends = threading.Event(), threading.Event(), []

        def pack(address):
            begun.set()
            may_end.wait(10)
            ends.append("packed")

        def use():
            weight.packing("form", 64, pack)
            ends.append("used")

        first, second = threading.Thread(target=use), threading.Thread(target=use)
        first.start()
        self.assertTrue(begun.wait(10))
        second.start()
        second.join(0.2)
        self.assertEqual(ends, [])
        may_end.set()
        first.join()
        second.join()
        self.assertEqual(ends, ["packed", "used", "used"])

    def test_restore_frees_them(self):
        model = tiny.build("mixtral")
        tiny.adapt(model)
        optimizer = AdamW(model.parameters(), keep_packings=True)
        want = tiny.step(model, tiny.batch())
        self.assertGreater(optimizer.packing_bytes, 0)
        with Packs() as packs:
            got = tiny.step(model, tiny.batch())
        self.assertEqual(packs.count, 0)
        self.assertTrue(torch.equal(got[0].loss, want[0].loss))
        anabatic.torch.restore(model)
        self.assertEqual(optimizer.packing_bytes, 0)

    def test_is_off_by_default(self):
        net = Net()
        optimizer = AdamW(net.parameters())
        result(net)
        optimizer.refresh()  # does nothing
        self.assertEqual((optimizer.keep_packings, optimizer.packing_bytes), (False, 0))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
