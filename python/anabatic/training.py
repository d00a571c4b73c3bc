# SPDX-License-Identifier: Apache-2.0
"""Training runs."""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

from . import _core
from ._batch import rows_of
from ._settings import split_config
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy

Path = Union[str, "os.PathLike[str]"]
Config = Union[Path, Mapping[str, Any], None]
Batch = Mapping[str, Any]

_LOG = logging.getLogger("anabatic")


class _Events:
    """Receives the events of a run. Messages go to the logger "anabatic"."""

    def __init__(self, **callbacks: Callable[..., object] | None) -> None:
        self.callbacks = callbacks

    def tell(self, name: str, *values: object) -> None:
        callback = self.callbacks.get(name)
        if callback is not None:
            callback(*values)

    def on_message(self, severity: str, text: str) -> None:
        _LOG.log({"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[severity], "%s", text)
        self.tell("on_message", severity, text)

    def on_plan(self, plan: _core.PlanSummary) -> None:
        self.tell("on_plan", plan)

    def on_step(self, metrics: _core.StepMetrics) -> None:
        self.tell("on_step", metrics)

    def on_validation(self, step: int, evaluation: _core.EvaluationSummary) -> None:
        self.tell("on_validation", step, evaluation)

    def on_checkpoint(self, step: int, directory: str) -> None:
        self.tell("on_checkpoint", step, directory)


class Training:
    """A training run, planned when it is made.

        run = Training("run.yaml", {"train.steps": 1000})
        for metrics in run:
            print(metrics.step, metrics.loss)

    `config` is a YAML file, or a dict of keys as in it: {"model": {"path": "model"}} or {"model.path": "model"}. `overrides`
    are keys that count more. The keys, their defaults and what they do are those of the command line.

    With data.train it is a run in train.output: it resumes from the newest checkpoint there, validates, and saves when
    train.save_every and its end ask for it. Without data.train the caller brings every batch: step(batch). Such a run
    writes nothing by itself.

    Callbacks: on_step(metrics), on_checkpoint(step, directory), on_validation(step, evaluation), on_message(severity, text).
    An exception of one ends the run after its step, with a checkpoint, and comes out unchanged. A run is used by one thread
    at a time, and in the process that made it.
    """

    def __init__(self, config: Config = None, overrides: Mapping[str, Any] | None = None, *,
                 on_step: Callable[[_core.StepMetrics], object] | None = None, on_checkpoint: Callable[[int, str], object] | None = None,
                 on_validation: Callable[[int, _core.EvaluationSummary], object] | None = None,
                 on_message: Callable[[str, str], object] | None = None) -> None:
        settings, file = split_config(config, overrides)
        self._keys = _core.resolve_keys(settings, file)
        self._has_data = self._keys["data.train"] != "[]"
        self._metrics: _core.StepMetrics | None = None
        self._events = _Events(on_step=on_step, on_checkpoint=on_checkpoint, on_validation=on_validation, on_message=on_message)
        host: Any = _core.Engine if self._has_data else _core.Session
        self._host = host(settings, file, self._events)
        if self._has_data:
            self._host.start()

    # What is planned.

    @property
    def keys(self) -> dict[str, str]:
        """Every key with its value, as YAML writes it."""
        return dict(self._keys)

    @property
    def plan(self) -> _core.PlanSummary:
        """Memory and predicted time of a step, a PlanSummary. print() shows all of it."""
        return self._open().plan()

    @property
    def graph(self) -> str:
        """The ops of a step, as text."""
        return self._open().graph()

    # Steps.

    def step(self, batch: Batch | None = None, *, learning_rate: float | None = None) -> _core.StepMetrics | None:
        """Runs the next step and returns its StepMetrics, or None if the run was over already.

        `batch`: a dict of integer arrays [sequences, tokens], in place of the run's own samples of this step: input_ids, and
        optionally labels (-100 is ignored; the default is input_ids), attention_mask and position_ids. Sequences are at most
        train.micro_batch_size x train.gradient_accumulation_steps, and are padded to data.sequence_length. A model predicts
        labels[i] from the tokens before it, as in transformers. `learning_rate` replaces the schedule's, without data.train.
        """
        rows = None if batch is None else rows_of(batch)
        if self._has_data:
            if learning_rate is not None:
                raise InvalidArgument("[training] learning_rate: expected none in a run with data.train, whose schedule gives it")
            metrics: _core.StepMetrics | None = self._open().step(rows)
        else:
            if rows is None:
                raise InvalidArgument("[training] expected a batch, got none: the config has no data.train")
            metrics = self._open().step(rows, learning_rate)
            self._events.on_step(metrics)
        if metrics is not None:
            self._metrics = metrics
        return metrics

    def __iter__(self) -> Iterator[_core.StepMetrics]:
        return self

    def __next__(self) -> _core.StepMetrics:
        metrics = self.step()
        if metrics is None:
            raise StopIteration
        return metrics

    def train(self) -> _core.TrainSummary:
        """Runs all remaining steps and returns a TrainSummary. Ctrl-C ends the run after a step, with a checkpoint."""
        self._require_data("train()")
        return self._open().train()

    @property
    def metrics(self) -> _core.StepMetrics | None:
        """Those of the last step; None before the first one."""
        return self._metrics

    @property
    def summary(self) -> _core.TrainSummary:
        """The run so far, a TrainSummary."""
        self._require_data("summary")
        return self._open().summary()

    # The model.

    def evaluate(self, batch: Batch | None = None) -> _core.EvaluationSummary:
        """The loss on data.validation, or, without data.train, on `batch`; an EvaluationSummary."""
        if self._has_data:
            if batch is not None:
                raise InvalidArgument("[training] evaluate(): expected no batch in a run with data.train: it reads data.validation")
            return self._open().evaluate()
        if batch is None:
            raise InvalidArgument("[training] evaluate(): expected a batch, got none: the config has no data.train")
        return self._open().evaluate(rows_of(batch))

    def generate(self, prompt: str) -> str:
        """The continuation of a text, by the keys generate.*."""
        return self._open().generate(prompt)

    @property
    def states(self) -> list[_core.StateInfo]:
        """Parameters and optimizer state, a list of StateInfo in the order of their names."""
        return self._open().states()

    def state(self, name: str) -> numpy.ndarray:
        """A state as a float32 NumPy array.

        Where the state is stored as it is, this is its own memory, read-only: steps change it. These are mostly the
        parameters and moments of one dimension. Others are stored in panels, with the upper and lower 16 bits apart, or in bf16:
        these are decoded into a copy.
        """
        return self._open().state(name)

    def state_dict(self) -> dict[str, numpy.ndarray]:
        """The parameters, as copies by name."""
        import numpy
        return {info.name: numpy.array(self.state(info.name)) for info in self.states if info.role == "parameter"}

    def load_state_dict(self, states: Mapping[str, Any], strict: bool = True) -> None:
        """Writes parameters, or other float32 states, by name. With `strict` all parameters must be there."""
        import numpy
        known = {info.name: info for info in self.states}
        problems = [f"'{name}' is no state of this model" for name in states if name not in known]
        arrays = {}
        for name in states:
            if name in known:
                array = numpy.ascontiguousarray(states[name], dtype=numpy.float32)
                if array.shape != known[name].shape:
                    problems.append(f"{name}: expected shape {list(known[name].shape)}, got {list(array.shape)}")
                arrays[name] = array
        if strict:
            problems += [f"{name} is missing" for name, info in known.items() if info.role == "parameter" and name not in states]
        if problems:
            raise InvalidArgument("[training] load_state_dict: " + "\n  ".join(["expected the model's parameters, got", *problems]))
        for name, array in arrays.items():
            self._open().write(name, array)

    def gradient_norms(self) -> dict[str, float]:
        """The norm of each parameter's gradient in the last step, before clipping. Of runs without data.train."""
        if self._has_data:
            raise InvalidArgument("[training] gradient_norms(): expected a config without data.train")
        return {norm.parameter: norm.norm for norm in self._open().gradient_norms()}

    # Files.

    def save(self, directory: Path | None = None) -> str:
        """Writes a checkpoint of the last step, which transformers loads too, and returns its path. A run with data.train
        writes it into train.output; others need a directory."""
        if self._has_data:
            if directory is not None:
                raise InvalidArgument("[training] save(): expected no directory in a run with data.train: it saves to train.output")
            return str(self._open().save())
        if directory is None:
            raise InvalidArgument("[training] save(): expected a directory, got none: the config has no data.train")
        directory = os.fspath(directory)
        path: str = self._open().save(directory)
        self._events.on_checkpoint(self._host.num_steps(), path)
        return path

    def restore(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint that save() wrote. Of runs without data.train; others resume by themselves."""
        if self._has_data:
            raise InvalidArgument("[training] restore(): expected a config without data.train: a run resumes from train.output")
        self._open().restore(os.fspath(checkpoint))

    def close(self) -> None:
        """Frees the model's memory and the run's directory. Arrays of state() keep both until they are gone."""
        self._host = None

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._host is None:
            raise InvalidArgument("[training] expected an open run, got one that was closed")
        return self._host

    def _require_data(self, what: str) -> None:
        if not self._has_data:
            raise InvalidArgument(f"[training] {what}: expected data.train, got a run without: the caller brings its batches, step(batch)")

    def __repr__(self) -> str:
        return f"Training(model.path={self._keys['model.path']}, step={self._metrics.step if self._metrics else None})"
