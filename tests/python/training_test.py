# SPDX-License-Identifier: Apache-2.0
"""Training from Python: the steps, bits and files of the command line, batches of the caller, callbacks, errors, threads."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import anabatic as ab
import tiny


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)


class OwnData(Case):
    def test_steps_are_those_of_the_command_line_to_the_bit(self):
        settings = tiny.run_settings(self.folder, train_save_every=4)
        arguments = tiny.arguments(settings | {"train.output": self.folder / "binary"})
        subprocess.run([os.environ["ANABATIC_BINARY"], "train", *arguments], check=True, capture_output=True)
        losses = [json.loads(line)["loss"] for line in (self.folder / "binary/metrics.jsonl").read_text().splitlines()]
        run = ab.Training(settings)
        steps = list(run)
        self.assertEqual([step.step for step in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([f"{step.loss:.4f}" for step in steps], [f"{loss:.4f}" for loss in losses])
        self.assertLess(steps[-1].loss, steps[0].loss)
        self.assertEqual(len(steps[0].experts), 2)
        summary = run.summary
        self.assertEqual((summary.step, summary.interrupted), (6, False))
        self.assertEqual(summary.before.tokens, summary.after.tokens)
        self.assertIsNone(run.step())
        newest = (self.folder / "binary/latest").read_text().strip()
        self.assertEqual(tiny.bytes_of(summary.checkpoint), tiny.bytes_of(self.folder / "binary" / newest))
        self.assertEqual(run.evaluate().loss, summary.after.loss)

    def test_metrics_have_what_the_file_has_of_int8_masks_and_the_loss_scale(self):
        settings = tiny.run_settings(self.folder, train_precision="int8", train_steps=3, precision_loss_scale=1024,
                                     sparsity_weights=["{units: [experts.down], pattern: '2:4', schedule: {begin: 2, end: 2}}"])
        steps = list(ab.Training(settings))
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        for step, line in zip(steps, lines, strict=True):
            self.assertEqual((step.int8_zeroed, step.int8_fallback), (line["int8_zeroed"], line["int8_fallback"]))
            self.assertEqual((step.loss_scale, step.is_skipped), (1024, False))
            self.assertEqual((line["loss_scale"], line["skipped"]), (1024, False))
            self.assertEqual({entry.units: entry.density for entry in step.sparsity}, line.get("density", {}))
        self.assertEqual([len(step.sparsity) for step in steps], [0, 1, 0])
        self.assertEqual((steps[1].sparsity[0].pattern, steps[1].sparsity[0].is_final), ("2:4", True))
        window = [json.loads(line) for line in (self.folder / "run/windows.jsonl").read_text().splitlines()][-1]["int8"]
        for counts in steps[-1].int8:
            of = window[counts.unit]["gradient" if counts.of_gradient else "input"]
            self.assertEqual((counts.largest, counts.zeroed, counts.fallback), (of["largest"], of["zeroed"], of["fallback"]))
        self.assertEqual(sum(len(of) for of in window.values()), len(steps[-1].int8))
        self.assertIn("fallback=", repr(steps[-1].int8[0]))

    def test_a_run_in_int8_generates_and_evaluates_as_one_in_bf16(self):
        run = ab.Training(tiny.run_settings(self.folder, train_precision="int8", train_save_dtype="fp32"))
        run.train()
        got = run.evaluate().loss, run.generate("abc")
        other = ab.Training(tiny.run_settings(self.folder, train_precision="bf16", train_save_dtype="fp32"))
        self.assertEqual((other.evaluate().loss, other.generate("abc")), got)

    def test_a_yaml_file_with_overrides(self):
        settings = tiny.run_settings(self.folder)
        sections = {}
        for key, value in settings.items():
            section, name = key.split(".")
            sections.setdefault(section, {})[name] = value if isinstance(value, (int, float, str)) else str(value)
        file = self.folder / "run.yaml"
        file.write_text("\n".join(f"{section}:\n" + "\n".join(f"  {name}: {json.dumps(value)}" for name, value in keys.items())
                                  for section, keys in sections.items()))
        with ab.Training(file, {"train.steps": 2}) as run:
            self.assertEqual(run.keys["train.steps"], "2")
            self.assertEqual(len(list(run)), 2)

    def test_a_dict_in_sections_is_one_with_dots(self):
        settings = tiny.run_settings(self.folder)
        settings |= {"train": {"gradient_leaves": "auto"}, "optimizer": {"betas": [0.9, 0.99]}, "data": {"shuffle": True}}
        with ab.Training(settings) as run:
            self.assertEqual(run.keys["optimizer.betas"], "[0.9, 0.99]")

    def test_plan_and_graph_are_there_before_the_first_step(self):
        with ab.Training(tiny.run_settings(self.folder)) as run:
            self.assertGreater(run.plan.peak_memory_bytes, 0)
            self.assertEqual(sum(share.bytes for share in run.plan.memory), run.plan.peak_memory_bytes)
            self.assertIn("saved activations", str(run.plan))
            self.assertIn("layers.1.router", run.graph)
            self.assertIsNone(run.metrics)

    def test_resumes_where_another_run_has_stopped(self):
        settings = tiny.run_settings(self.folder)
        with ab.Training(settings | {"train.output": self.folder / "whole"}) as run:
            whole = run.train()
        with ab.Training(settings) as run:
            run.step(), run.step()
            path = run.save()
            self.assertTrue(path.endswith("step-00000002"), path)
        with ab.Training(settings) as run:
            self.assertEqual([step.step for step in run], [3, 4, 5, 6])
            self.assertEqual(tiny.bytes_of(run.summary.checkpoint), tiny.bytes_of(whole.checkpoint))

    def test_ranks_as_threads_end_with_the_bits_of_one(self):
        settings = tiny.run_settings(self.folder, train_gradient_leaves=2)
        with ab.Training(settings) as run:
            one = run.train()
        two = {"parallel.local_ranks": 2, "train.gradient_accumulation_steps": 1, "train.output": self.folder / "ranks"}
        with ab.Training(settings, two) as run:
            self.assertIsNotNone(run.step().comm)
            with self.assertRaisesRegex(ab.Unsupported, "expected one rank, got 2"):
                run.state("embedding.weight")
            summary = run.train()
        weights = [tiny.bytes_of(of.checkpoint)["model.safetensors"] for of in (one, summary)]
        self.assertEqual(*weights)

    def test_a_batch_of_the_caller_takes_the_place_of_a_step(self):
        settings = tiny.run_settings(self.folder)
        with ab.Training(settings) as run:
            first = run.step({"input_ids": numpy.arange(48).reshape(3, 16) % 29})
            self.assertEqual((first.step, first.tokens), (1, 45))
            self.assertEqual(run.step().step, 2)
            with self.assertRaisesRegex(ValueError, r"sequence 0, token 3: expected an id in \[0, 32\), got 77"):
                run.step({"input_ids": [[1, 2, 3, 77]]})
            with self.assertRaisesRegex(ValueError, "expected at most 4 sequences"):
                run.step({"input_ids": numpy.zeros((5, 4), int)})
            self.assertEqual(run.step().step, 3)  # nothing was lost


class CallersData(Case):
    def setUp(self):
        super().setUp()
        self.settings = tiny.run_settings(self.folder)
        for key in ("data.train", "data.validation", "train.output"):
            del self.settings[key]
        self.batch = {"input_ids": numpy.random.default_rng(0).integers(0, 29, (4, 16))}

    def test_learns_a_batch_by_heart(self):
        run = ab.Training(self.settings, {"train.steps": 40, "optimizer.schedule": "constant"})
        losses = [run.step(self.batch).loss for _ in range(40)]
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertEqual(run.metrics.step, 40)
        self.assertLess(run.evaluate(self.batch).loss, losses[0])
        self.assertIn("layers.0.experts.gate.weight", run.gradient_norms())

    def test_a_learning_rate_of_the_caller_replaces_the_schedule(self):
        run = ab.Training(self.settings)
        self.assertAlmostEqual(run.step(self.batch).learning_rate, 1e-3)  # the first of 10 steps of warm-up
        self.assertEqual(run.step(self.batch, learning_rate=0.5).learning_rate, 0.5)

    def test_masks_and_positions_say_what_transformers_means(self):
        ids = self.batch["input_ids"]
        losses = []
        mask = numpy.zeros((4, 16), int)
        mask[:, :10] = 1
        left = numpy.roll(mask, 6, 1)
        for batch in ({"input_ids": ids[:, :10]}, {"tokens": ids, "attention_mask": mask},
                      {"input_ids": numpy.roll(ids, 6, 1), "attention_mask": left},
                      {"input_ids": ids, "attention_mask": mask, "labels": numpy.where(mask == 1, ids, -100)}):
            losses.append(ab.Training(self.settings).evaluate(batch).loss)
        self.assertEqual(losses, losses[:1] * 4)
        apart = ab.Training(self.settings).evaluate({"input_ids": numpy.concatenate([ids[:2, :8], ids[:2, 8:]])})
        packed = ab.Training(self.settings).evaluate({"input_ids": ids[:2], "position_ids": numpy.tile(numpy.arange(8), (2, 2))})
        self.assertEqual(apart.tokens, packed.tokens)
        self.assertAlmostEqual(apart.loss, packed.loss, places=6)

    def test_bad_batches_are_refused_with_their_place(self):
        run = ab.Training(self.settings)
        ids = self.batch["input_ids"]
        hole = numpy.ones((4, 16), int)
        hole[2, 5] = 0
        for batch, text in (({"input_ids": ids, "label": ids}, "got 'label'; did you mean labels"), ({}, "expected input_ids, got nothing"),
                            ({"input_ids": ids, "tokens": ids}, "once"), ({"input_ids": ids * 1.0}, "expected integers"),
                            ({"input_ids": ids, "labels": ids[:2]}, r"labels: expected the shape of input_ids, \[4, 16\], got \[2, 16\]"),
                            ({"input_ids": ids, "attention_mask": hole}, "sequence 2: expected ones in one piece"),
                            ({"input_ids": ids, "position_ids": ids}, "position_ids, sequence 0: expected positions that count up"),
                            ({"input_ids": numpy.full((1, 4), 2**40)}, "expected numbers of 32 bits"),
                            ({"input_ids": ids[:, :0]}, "expected a label to learn"),
                            ({"input_ids": numpy.zeros((1, 17), int)}, r"expected 1 to 16 tokens \(data.sequence_length\), got 17")):
            with self.assertRaisesRegex(ab.InvalidArgument, text):
                run.step(batch)
        with self.assertRaisesRegex(ValueError, "expected a batch, got none"):
            run.step()
        with self.assertRaisesRegex(ValueError, "expected data.train"):
            run.train()
        self.assertEqual(run.step(self.batch).step, 1)

    def test_saves_and_goes_on_from_there_to_the_bit(self):
        run = ab.Training(self.settings)
        run.step(self.batch)
        saved = []
        run._events.callbacks["on_checkpoint"] = lambda step, path: saved.append((step, path))
        checkpoint = run.save(self.folder / "saved")
        self.assertEqual(saved, [(1, checkpoint)])
        after = run.step(self.batch).loss
        other = ab.Training(self.settings, {"train.seed": 5})
        other.restore(checkpoint)
        self.assertEqual(other.step(self.batch).loss, after)


class States(Case):
    def test_arrays_are_views_where_a_state_is_stored_as_it_is(self):
        run = ab.Training(tiny.run_settings(self.folder))
        by_name = {info.name: info for info in run.states}
        norm = run.state("layers.0.mlp_norm.weight")
        self.assertEqual((norm.dtype, norm.shape), (numpy.float32, by_name["layers.0.mlp_norm.weight"].shape))
        self.assertFalse(norm.flags.writeable)
        before = norm.copy()
        run.step()
        self.assertTrue((norm != before).any())  # the same memory
        matrix = run.state("layers.0.experts.gate.weight")
        self.assertEqual(matrix.shape, (4, 48, 32))
        matrix[0] = 0  # a copy
        self.assertTrue((run.state("layers.0.experts.gate.weight")[0] != 0).any())
        self.assertEqual(numpy.from_dlpack(run.state("layers.0.experts.gate.weight")).shape, (4, 48, 32))
        with self.assertRaisesRegex(ValueError, "expected the name of a state"):
            run.state("layers.9")
        run.close()
        self.assertTrue(numpy.isfinite(norm).all())  # the array keeps its memory
        with self.assertRaisesRegex(ValueError, "closed"):
            run.step()

    def test_a_state_dict_goes_from_run_to_run(self):
        settings = tiny.run_settings(self.folder)
        run = ab.Training(settings)
        run.step()
        states = run.state_dict()
        other = ab.Training(settings, {"train.output": self.folder / "other", "train.seed": 3})
        other.load_state_dict(states)
        self.assertEqual(run.evaluate().loss, other.evaluate().loss)
        self.assertEqual({name: array.tobytes() for name, array in other.state_dict().items()},
                         {name: array.tobytes() for name, array in states.items()})
        other.step()
        wrong = {"head.weight": states["head.weight"][:2], "x": numpy.zeros(2)}
        with self.assertRaises(ab.InvalidArgument) as error:
            other.load_state_dict(wrong)
        for part in ("'x' is no state", "head.weight: expected shape [32, 32], got [2, 32]", "embedding.weight is missing"):
            self.assertIn(part, str(error.exception))


class Events(Case):
    def setUp(self):
        super().setUp()
        # Whoever started this in the background may have had Ctrl-C ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def test_callbacks_hear_of_steps_checkpoints_and_validations(self):
        heard = {"steps": [], "checkpoints": [], "validations": [], "messages": []}
        with self.assertLogs("anabatic", "INFO"):
            run = ab.Training(tiny.run_settings(self.folder, train_save_every=4, train_validate_every=3),
                              on_step=lambda metrics: heard["steps"].append(metrics.step),
                              on_checkpoint=lambda step, path: heard["checkpoints"].append((step, pathlib.Path(path).is_dir())),
                              on_validation=lambda step, evaluation: heard["validations"].append(step),
                              on_message=lambda severity, text: heard["messages"].append(text))
            run.train()
        self.assertEqual(heard["steps"], [1, 2, 3, 4, 5, 6])
        self.assertEqual(heard["checkpoints"], [(4, True), (6, True)])
        self.assertEqual(heard["validations"], [0, 3, 6])
        self.assertTrue(any("tokens" in text for text in heard["messages"]), heard["messages"])

    def test_an_exception_of_a_callback_ends_the_run_and_comes_out_unchanged(self):
        class Mine(Exception):
            pass

        error = Mine("of step 3")

        def on_step(metrics):
            if metrics.step == 3:
                raise error

        for way in (lambda run: run.train(), lambda run: list(run)):
            settings = tiny.run_settings(self.folder)
            run = ab.Training(settings, on_step=on_step)
            with self.assertRaises(Mine) as raised:
                way(run)
            self.assertIs(raised.exception, error)
            self.assertEqual((run.summary.step, run.summary.interrupted), (3, True))
            self.assertTrue(run.summary.checkpoint.endswith("step-00000003"))
            self.assertIsNone(run.step())
            run.close()
            subprocess.run(["rm", "-r", settings["train.output"]], check=True)

    def test_a_callback_may_not_call_its_run(self):
        run = ab.Training(tiny.run_settings(self.folder), on_step=lambda metrics: run.evaluate())
        with self.assertRaisesRegex(ValueError, "expected no other call to be under way"):
            run.train()

    def test_ctrl_c_ends_train_after_a_step_with_a_checkpoint(self):
        run = ab.Training(tiny.run_settings(self.folder, train_steps=100000),
                          on_step=lambda metrics: metrics.step == 5 and os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            run.train()
        summary = run.summary
        self.assertGreaterEqual(summary.step, 5)
        self.assertTrue(summary.checkpoint.endswith(f"step-{summary.step:08d}"))

    def test_ctrl_c_in_a_loop_comes_between_two_steps(self):
        run = ab.Training(tiny.run_settings(self.folder, train_steps=100000))
        run.step()
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            for _ in run:
                pass
        step = run.metrics.step
        self.assertIn(run.step().step, (step + 1, step + 2))  # it goes on, whether or not the last one was seen


class Errors(Case):
    def test_types_and_texts(self):
        settings = tiny.run_settings(self.folder)
        for wrong, kind, text in (({"train.step": 1}, ValueError, "train.step: unknown key; did you mean train.steps?"), ({"train.steps": -1}, ValueError, "train.steps"),
                                  ({"model.path": "/nowhere"}, OSError, "/nowhere"), ({"train.steps": {1}}, ValueError, "got set"),
                                  ({"parallel": {"tensor": 2, "local_ranks": 2}}, NotImplementedError, "tensor"), ({"memory.budget": 1000000}, MemoryError, "budget")):
            with self.assertRaises(kind) as error:
                ab.Training(settings | wrong)
            self.assertIsInstance(error.exception, ab.Error)
            self.assertIn(text, str(error.exception))
        try:
            ab.Training(settings | {"memory.budget": 1000000})
        except ab.BudgetError as error:
            self.assertGreater(error.smallest_bytes, 1000000)
        with self.assertRaises(ValueError):
            ab.Training(7)
        with ab.Training(settings):
            with self.assertRaisesRegex(ab.Error, "run"):  # another run owns the directory
                ab.Training(settings)

    def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_its_states(self):
        run = ab.Training(tiny.run_settings(self.folder, optimizer_learning_rate=1e6, optimizer_clip_grad_norm=0, train_steps=50))
        norm = run.state("norm.weight")
        with self.assertRaisesRegex(ab.Error, "the loss is -?nan"):
            run.train()
        self.assertEqual(norm.shape, (32,))
        norm.sum()
        with self.assertRaisesRegex(ab.Error, "got one that an error has ended"):
            run.step()

    def test_a_forked_child_is_told_to_make_its_own_run(self):
        run = ab.Training(tiny.run_settings(self.folder))
        run.step()
        child = os.fork()
        if child == 0:
            try:
                run.step()
            except NotImplementedError:
                os._exit(7)
            os._exit(8)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)


class Threads(Case):
    def test_python_goes_on_while_a_step_computes(self):
        run = ab.Training(tiny.run_settings(self.folder, train_steps=30, data_sequence_length=64, train_micro_batch_size=16))
        counted = 0
        done = threading.Event()

        def count():
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        list(run)
        done.set()
        thread.join()
        self.assertGreater(counted, 100)

    def test_two_runs_on_threads_have_the_bits_of_each_alone(self):
        def train(name, seed):
            with ab.Training(settings, {"train.seed": seed, "train.output": self.folder / name}) as run:
                return tiny.bytes_of(run.train().checkpoint)

        settings = tiny.run_settings(self.folder)
        alone = [train("a", 1), train("b", 2)]
        together = [None, None]

        def keep(place, *arguments):
            together[place] = train(*arguments)

        threads = [threading.Thread(target=keep, args=(0, "c", 1)), threading.Thread(target=keep, args=(1, "d", 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(alone, together)

    def test_memory_is_flat_over_many_steps(self):
        run = ab.Training(tiny.run_settings(self.folder, train_steps=1000))
        for _ in range(200):
            run.step()
        before = _resident()
        for _ in range(800):
            run.step()
        self.assertLess(_resident() - before, 1 << 20)


def _resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
