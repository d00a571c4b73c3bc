# SPDX-License-Identifier: Apache-2.0
"""AdamW against torch.optim.AdamW, and the modules."""
import copy
import io
import os
import sys
import unittest

import torch

import anabatic as ab
import anabatic.torch
import tiny  # noqa: F401

SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.1}


def model():
    torch.manual_seed(0)
    return torch.nn.ParameterList([torch.randn(37, 11), torch.randn(3, 16, 33), torch.randn(65), torch.randn(())])


def set_gradients(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


class Optimizer(unittest.TestCase):
    # An update has a dozen roundings of fp32 and moves a weight by about lr.
    BOUND = 16 * 2.0**-24

    def near(self, ours, theirs, steps=1):
        for a, b in zip(ours, theirs):
            self.assertLess(((a - b).abs() / (1 + b.abs())).max().item() if a.numel() else 0, steps * self.BOUND)

    def test_steps_are_torchs(self):
        ours, theirs = model(), model()
        mine, other = anabatic.torch.AdamW(ours, **SETTINGS), torch.optim.AdamW(theirs, **SETTINGS)
        for step in range(10):
            set_gradients(ours, step), set_gradients(theirs, step)
            mine.step(), other.step()
            self.near(ours, theirs, step + 1)

    def test_clips_as_torch_does_and_leaves_gradients(self):
        ours, theirs = model(), model()
        mine, other = anabatic.torch.AdamW(ours, **SETTINGS, max_norm=0.5), torch.optim.AdamW(theirs, **SETTINGS)
        for step in range(5):
            set_gradients(ours, step), set_gradients(theirs, step)
            before = [parameter.grad.clone() for parameter in ours]
            norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            mine.step(), other.step()
            self.assertAlmostEqual(mine.grad_norm, norm.item(), places=4)
            self.assertTrue(all(torch.equal(parameter.grad, b) for parameter, b in zip(ours, before)))
            self.near(ours, theirs, step + 1)

    def test_state_goes_from_one_to_the_other_and_back(self):
        ours, theirs = model(), model()
        mine, other = anabatic.torch.AdamW(ours, **SETTINGS), torch.optim.AdamW(theirs, **SETTINGS)
        for step in range(3):
            set_gradients(ours, step), set_gradients(theirs, step)
            mine.step(), other.step()
        file = io.BytesIO()
        torch.save(mine.state_dict(), file)
        file.seek(0)
        swapped = torch.optim.AdamW(theirs)
        swapped.load_state_dict(torch.load(file))
        back = anabatic.torch.AdamW(ours)
        back.load_state_dict(other.state_dict())
        set_gradients(ours, 3), set_gradients(theirs, 3)
        swapped.step(), back.step()
        self.near(ours, theirs, 4)
        self.assertEqual(back.state_dict()["state"][0]["step"], 4)
        self.assertEqual(back.param_groups[0]["betas"], SETTINGS["betas"])

    def test_moments_in_bf16_end_near(self):
        ours, theirs = model(), model()
        mine, other = anabatic.torch.AdamW(ours, **SETTINGS, moments="bf16"), torch.optim.AdamW(theirs, **SETTINGS)
        for step in range(10):
            set_gradients(ours, step), set_gradients(theirs, step)
            mine.step(), other.step()
        self.assertEqual(mine.state[ours[0]]["exp_avg"].dtype, torch.bfloat16)
        moved = torch.cat([(a - b).flatten() for a, b in zip(theirs, model())]).norm()
        apart = torch.cat([(a - b).flatten() for a, b in zip(theirs, ours)]).norm()
        self.assertLess(apart / moved, 2.0**-5)  # a moment is off by 2^-9, and an update by a few of those

    def large(self):
        torch.manual_seed(0)
        return torch.nn.ParameterList([torch.randn(128, 70), torch.randn(3, 40, 50), torch.randn(11, 37), torch.randn(5000)])

    def test_moments_in_int8_end_near(self):
        ours, theirs = self.large(), self.large()
        mine, other = anabatic.torch.AdamW(ours, **SETTINGS, moments="int8"), torch.optim.AdamW(theirs, **SETTINGS)
        for step in range(10):
            set_gradients(ours, step), set_gradients(theirs, step)
            mine.step(), other.step()
        # A byte an element, and four for each block of 16 x 16; small matrices and vectors have fp32.
        sizes = [mine.state[parameter]["exp_avg"].nbytes for parameter in ours]
        self.assertEqual(sizes, [8960 + 4 * 8 * 5, 6016 + 4 * 8 * 4, 4 * 11 * 37, 4 * 5000])
        for place, bound in ((0, 2.0**-3), (1, 2.0**-3), (2, 2.0**-16), (3, 2.0**-16)):  # 8 bits: a few percent of a small moment
            moved, apart = theirs[place] - self.large()[place], theirs[place] - ours[place]
            self.assertLess(apart.norm() / moved.norm(), bound, place)

    def test_int8_state_comes_back_to_the_bit_and_goes_to_torch(self):
        ours, theirs = self.large(), self.large()
        mine = anabatic.torch.AdamW(ours, **SETTINGS, moments="int8")
        for step in range(3):
            set_gradients(ours, step)
            mine.step()
        file = io.BytesIO()
        torch.save(mine.state_dict(), file)
        file.seek(0)
        saved, again = torch.load(file), copy.deepcopy(ours)
        back = anabatic.torch.AdamW(again, moments="int8")
        back.load_state_dict(saved)
        decoded = mine.torch_state_dict()
        for parameter, state in zip(ours, decoded["state"].values()):
            self.assertEqual((state["exp_avg"].shape, state["exp_avg_sq"].dtype), (parameter.shape, torch.float32))
        self.assertEqual(mine.state[ours[0]]["exp_avg"].dtype, torch.uint8)  # it stays what it was
        with torch.no_grad():
            for a, b in zip(theirs, ours):
                a.copy_(b)
        other = torch.optim.AdamW(theirs)
        other.load_state_dict(copy.deepcopy(decoded))  # it keeps the tensors that it is given
        wide = anabatic.torch.AdamW(copy.deepcopy(ours))
        wide.load_state_dict(saved)
        for state, want in zip(wide.state_dict()["state"].values(), decoded["state"].values()):
            self.assertTrue(torch.equal(state["exp_avg"], want["exp_avg"]) and torch.equal(state["exp_avg_sq"], want["exp_avg_sq"]))
        for parameters in (ours, again, theirs):
            set_gradients(parameters, 3)
        mine.step(), back.step(), other.step()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(ours, again)))
        self.near(ours, theirs)  # a step computes with moments as they are kept, and rounds afterwards

    def test_torchs_state_goes_into_int8(self):
        ours, theirs = self.large(), self.large()
        other = torch.optim.AdamW(theirs, **SETTINGS)
        set_gradients(theirs, 0)
        other.step()
        mine = anabatic.torch.AdamW(ours, moments="int8")
        mine.load_state_dict(other.state_dict())
        loaded, given = mine.torch_state_dict()["state"], other.state_dict()["state"]
        for place, parameter in enumerate(ours):
            for name in ("exp_avg", "exp_avg_sq"):
                got, want = loaded[place][name], given[place][name]
                # Entries of the largest decade are 0.9 / 64 of a block's largest magnitude apart, and values go to the nearest.
                bound = 0.9 / 128 * want.abs().max().item() if parameter.ndim > 1 and parameter.numel() >= 4096 else 0.0
                self.assertLessEqual((got - want).abs().max().item(), bound * (1 + 2.0**-10), (place, name))
        wrong = mine.state_dict()
        wrong["state"][0]["exp_avg"] = wrong["state"][0]["exp_avg"][:-4]
        with self.assertRaisesRegex(ab.InvalidArgument, r"exp_avg: expected shape \[128, 70\], or 9120 bytes of int8, got \[9116\]"):
            mine.load_state_dict(wrong)

    def test_groups_schedules_closures_copies(self):
        ours = model()
        mine = anabatic.torch.AdamW([{"params": list(ours)[:2], "weight_decay": 0.0}, {"params": list(ours)[2:], "lr": 0.0, "weight_decay": 0.0}])
        schedule = torch.optim.lr_scheduler.LambdaLR(mine, lambda step: 0.5**step)
        before = [parameter.detach().clone() for parameter in ours]
        version = ours[0]._version
        set_gradients(ours, 0)
        self.assertEqual(mine.step(lambda: 7), 7)
        schedule.step()
        self.assertEqual([torch.equal(a, b) for a, b in zip(ours, before)], [False, False, True, True])
        self.assertGreater(ours[0]._version, version)
        copy.deepcopy(mine)
        mine.zero_grad()
        mine.step()  # nothing has a gradient

    def test_bits_are_equal_for_any_number_of_threads(self):
        results, before = [], torch.get_num_threads()
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                ours = model()
                mine = anabatic.torch.AdamW(ours, **SETTINGS, max_norm=0.1, moments="bf16")
                for step in range(3):
                    set_gradients(ours, step)
                    mine.step()
                results.append([parameter.detach() for parameter in ours])
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(results[0], other)))

    def test_a_forked_child_updates_on_one_thread(self):
        ours = model()
        mine = anabatic.torch.AdamW(ours, **SETTINGS, max_norm=0.5)
        set_gradients(ours, 0)
        mine.step()
        set_gradients(ours, 1)
        child = os.fork()
        if child == 0:
            mine.step()
            os._exit(int(sum(parameter.detach().double().sum() for parameter in ours).item() * 1e6) % 251)
        mine.step()
        want = int(sum(parameter.detach().double().sum() for parameter in ours).item() * 1e6) % 251
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), want)

    def test_bad_input_is_refused(self):
        for wrong, kind, text in (({"lr": -1.0}, ValueError, r"\[AdamW\] lr: got -1.0"), ({"betas": (1.0, 0.9)}, ValueError, "betas"),
                                  ({"moments": "int4"}, ValueError, "expected fp32, bf16 or int8"), ({"max_norm": 0.0}, ValueError, "max_norm")):
            with self.assertRaisesRegex(kind, text):
                anabatic.torch.AdamW(model(), **wrong)
        with self.assertRaisesRegex(NotImplementedError, "expected contiguous float32 on the CPU, got torch.bfloat16"):
            anabatic.torch.AdamW([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))])
        with self.assertRaisesRegex(NotImplementedError, "strided"):
            anabatic.torch.AdamW([torch.nn.Parameter(torch.zeros(3, 4).T)])
        ours = model()
        mine = anabatic.torch.AdamW(ours, max_norm=1.0)
        set_gradients(ours, 0)
        ours[1].grad[0, 0, 0] = float("nan")
        before = [parameter.detach().clone() for parameter in ours]
        with self.assertRaisesRegex(ab.InvalidArgument, "finite norm"):
            mine.step()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(ours, before)))
        with self.assertRaisesRegex(NotImplementedError, "amsgrad"):
            mine.load_state_dict(torch.optim.AdamW(model(), amsgrad=True).state_dict())


class Modules(unittest.TestCase):
    def test_learn(self):
        torch.manual_seed(0)
        nn = anabatic.torch.nn

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.mlp, self.experts = nn.RMSNorm(16), nn.MLP(16, 24), nn.Experts(4, 16, 24)
                self.router = torch.nn.Linear(16, 4)

            def forward(self, x):
                x = x + self.mlp(self.norm(x))
                weights, index = self.router(x).softmax(-1).topk(2)
                return x + self.experts(x, index, weights)

        net, x = Net(), torch.randn(32, 16)
        target = torch.randn(32, 16)
        optimizer = anabatic.torch.AdamW(net.parameters(), lr=1e-2)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = (net(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertIn("RMSNorm(16, eps=1e-06)", repr(net))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
