# SPDX-License-Identifier: Apache-2.0
"""The TensorBoard files of a run that was resumed, read by tensorboard: every step once, equal to metrics.jsonl.

usage: parity_events.py BINARY
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
}
EXPERT_SCALARS = {
    "load_max_over_mean": "expert_load",
    "load_min_over_mean": "expert_load_min",
    "below_10_percent": "experts_below_10_percent",
}
SCALARS = {
    "train/loss": "loss",
    "train/aux_loss": "aux_loss",
    "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
    "speed/tokens_per_second": "tokens_per_second",
    "speed/mfu": "mfu",
    "memory/peak_bytes": "peak_memory_bytes",
}


def as_floats(values):
    """Rounded to fp32, which is what an event holds."""
    return [float(numpy.float32(value)) for value in values]


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text.txt").write_text("".join(f"Line {i} of {i * i} lines.\n" for i in range(200)))
        model, text, run = folder / "model", folder / "text.txt", folder / "run"
        subprocess.run([binary, "tokenize", "--train", text, "--vocab_size", "300", "--output", model], check=True)
        (model / "config.json").write_text(json.dumps(CONFIG))
        for steps in (3, 7):
            subprocess.run(
                [binary, "train", "--model.path", model, "--model.init", "random", "--data.train", text]
                + ["--data.validation", text, "--data.sequence_length", "16", "--train.micro_batch_size", "2"]
                + ["--optimizer.schedule", "constant", "--train.output", run, "--train.steps", str(steps)],
                check=True,
            )
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in metrics] == list(range(1, 8)), metrics
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        for tag, key in SCALARS.items():
            scalars = events.Scalars(tag)
            assert [s.step for s in scalars] == list(range(1, 8)), (tag, scalars)
            assert [s.value for s in scalars] == as_floats(line[key] for line in metrics), tag
        loads = as_floats(max(line["expert_load"]) for line in metrics)
        assert [s.value for s in events.Scalars("experts/load_max_over_mean")] == loads
        for layer in range(len(metrics[0]["expert_load"])):
            for tag, key in EXPERT_SCALARS.items():
                wants = as_floats(line[key][layer] for line in metrics)
                assert [s.value for s in events.Scalars(f"experts/layer_{layer}/{tag}")] == wants, (layer, tag)
        validation = [json.loads(line) for line in (run / "validation.jsonl").read_text().splitlines()]
        assert [line["step"] for line in validation] == [0, 3, 7], validation
        losses = as_floats(line["loss"] for line in validation)
        assert [s.value for s in events.Scalars("validation/loss")] == losses
    print(f"{len(SCALARS) + 2} scalars of 7 steps agree")


if __name__ == "__main__":
    main()
