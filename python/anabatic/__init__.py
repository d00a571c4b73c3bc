# SPDX-License-Identifier: Apache-2.0
"""Anabatic trains mixture-of-experts language models on a CPU.

    import anabatic as ab

    run = ab.Training("run.yaml", {"train.steps": 1000})
    for metrics in run:
        print(metrics.step, metrics.loss)

`python -m anabatic` is the command line.
"""
import sys as _sys

_loaded = getattr(_sys, "_anabatic", __file__)
if _loaded != __file__:
    raise ImportError(f"expected one anabatic in a process, got {__file__} and {_loaded}")
setattr(_sys, "_anabatic", __file__)

from ._core import VERSION as __version__
from ._core import (CommMetrics, EvaluationSummary, GradientNorm, Int8Counts, LayerBalance, MemoryShare, PlannedChoice, PlannedStep,
                    PlanSummary, PreferenceMetrics, SparsityMetrics, StateInfo, StepMetrics, TrainSummary)
from .errors import BudgetError, CommError, Error, InternalError, InvalidArgument, ResourceError, Unsupported
from .tools import Dataset, Tokenizer, info, load_plugin, plan, tokenize
from .training import Training

__all__ = [
    "BudgetError", "CommError", "CommMetrics", "Dataset", "Error", "EvaluationSummary", "GradientNorm", "Int8Counts",
    "InternalError", "InvalidArgument", "LayerBalance", "MemoryShare", "PlanSummary", "PlannedChoice", "PlannedStep",
    "PreferenceMetrics", "ResourceError", "SparsityMetrics", "StateInfo", "StepMetrics", "Tokenizer", "TrainSummary", "Training",
    "Unsupported", "__version__", "info", "load_plugin", "plan", "tokenize"
]
