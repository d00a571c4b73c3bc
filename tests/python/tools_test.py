# SPDX-License-Identifier: Apache-2.0
"""Plans, models' files, tokenizers and samples from Python."""
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

import numpy

import anabatic as ab
import tiny


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.model = tiny.write_model(self.folder / "model")


class Plan(Case):
    def test_plans_as_the_command_line_does(self):
        keys = {"train.micro_batch_size": 2, "data.sequence_length": 32, "device.threads": 1}
        planned = ab.plan({"model.path": self.model}, keys)
        command = [os.environ["ANABATIC_BINARY"], "plan", self.model, "--json", *(f"--{key}={value}" for key, value in keys.items())]
        told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        self.assertEqual(planned.choices, [])
        self.assertGreater(planned.summary.step_seconds, 0)
        shares = {share.name: share.bytes for share in planned.summary.memory}
        self.assertEqual(shares["parameters"], sum(row["bytes"] for row in told["table"] if row["name"] == "parameters"))
        self.assertIn("parameters", str(planned))

    def test_a_budget_that_is_too_small_says_which_is_enough(self):
        with self.assertRaises(ab.BudgetError) as error:
            ab.plan({"model.path": self.model, "memory.budget": "1MB"})
        self.assertGreater(error.exception.smallest_bytes, 1e6)


class Info(Case):
    def test_tells_what_the_command_line_tells(self):
        told = subprocess.run([os.environ["ANABATIC_BINARY"], "info", self.model, "--json"], check=True, capture_output=True).stdout
        self.assertEqual(ab.info(self.model), json.loads(told))
        self.assertEqual(ab.info(self.model)["model_type"], "mixtral")

    def test_an_unknown_family_is_described(self):
        (self.model / "config.json").write_text(json.dumps(tiny.CONFIG | {"model_type": "mixtral9"}))
        info = ab.info(self.model)
        self.assertFalse(info["is_supported"])
        with self.assertRaisesRegex(OSError, "found nothing of that name"):
            ab.info(self.folder / "nothing")


class Text(Case):
    def test_encodes_and_decodes(self):
        tokenizer = ab.Tokenizer(self.model)
        ids = tokenizer.encode("hello, world.")
        self.assertEqual(ids, [tiny.LETTERS.index(letter) for letter in "hello, world."])
        self.assertEqual(tokenizer.decode(numpy.array(ids, numpy.int32)), "hello, world.")
        self.assertEqual((len(tokenizer), tokenizer.token_to_id("b"), tokenizer.token_to_id("?"), tokenizer.id_to_token(1)), (29, 1, None, "b"))
        self.assertEqual(pickle.loads(pickle.dumps(tokenizer)).encode("ab"), [0, 1])
        with self.assertRaisesRegex(OSError, "cannot open"):
            ab.Tokenizer(self.folder / "nothing")

    def test_tokenizes_in_a_forked_child(self):
        tokenizer = ab.Tokenizer(self.model)
        child = os.fork()
        if child == 0:
            os._exit(len(tokenizer.encode("abc")))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)

    def test_files_become_samples(self):
        text = tiny.write_text(self.folder / "text.jsonl")
        counts = ab.tokenize(self.model, text, self.folder / "tokens", device_threads=1)
        self.assertEqual(counts["documents"], 60)
        self.assertEqual((self.folder / "tokens.bin").stat().st_size, 2 * counts["tokens"])
        data = ab.Dataset({"model.path": self.model, "data.train": self.folder / "tokens", "data.sequence_length": 16})
        self.assertEqual((data.num_documents, data.num_tokens), (60, counts["tokens"]))
        self.assertEqual(len(data), -(-counts["tokens"] // 16))
        documents = [json.loads(line)["text"] for line in text.read_text().splitlines()]
        stream = [tiny.LETTERS.index(letter) for letter in "".join(documents)]
        read = numpy.concatenate([sample["input_ids"] for sample in data])
        self.assertEqual(read.tolist(), stream)
        for sample in data:
            begins = sample["position_ids"] == 0
            self.assertTrue((sample["labels"][begins] == -100).all())
            self.assertTrue((sample["labels"][~begins] == sample["input_ids"][~begins]).all())
        self.assertEqual(data[-1]["input_ids"].tolist(), data[len(data) - 1]["input_ids"].tolist())
        with self.assertRaises(IndexError):
            data[len(data)]
        with self.assertRaisesRegex(ValueError, "data.train: expected a value"):
            ab.Dataset({"model.path": self.model})
        with self.assertRaisesRegex(ValueError, "expected text or JSON, got token ids"):
            ab.tokenize(self.model, self.folder / "tokens.bin", self.folder / "again")

    def test_samples_train_a_run_that_takes_batches(self):
        settings = tiny.run_settings(self.folder)
        data = ab.Dataset(settings)
        del settings["data.train"], settings["train.output"]
        run = ab.Training(settings)
        full = [sample for sample in data if len(sample["input_ids"]) == 16][:4]
        batch = {name: numpy.stack([sample[name] for sample in full]) for name in full[0]}
        metrics = run.step(batch)
        self.assertEqual(metrics.tokens, int((batch["labels"] != -100).sum()))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
