// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "anabatic/engine.h"
#include "anabatic/plan.h"
#include "anabatic/session.h"
#include "bindings.h"

namespace anabatic::python {
namespace {

namespace nb = nanobind;

// "StepMetrics(step=3, loss=4.2)" of the named attributes.
nb::str describe(nb::handle self, std::initializer_list<const char*> names) {
  std::string out = nb::cast<std::string>(self.type().attr("__name__")) + "(";
  const char* separator = "";
  for (const char* name : names) {
    out += separator + std::string(name) + "=" + nb::repr(self.attr(name)).c_str();
    separator = ", ";
  }
  return nb::str((out + ")").c_str());
}

#define SHOWS(...) def("__repr__", [](nb::handle self) { return describe(self, {__VA_ARGS__}); })

}  // namespace

void bind_results(nb::module_& core) {
  nb::class_<LayerBalance>(core, "LayerBalance",
                           "How evenly tokens were routed to the experts of one layer. A share is "
                           "relative to the mean over the layer's experts.")
      .def_ro("layer", &LayerBalance::layer)
      .def_ro("max_over_mean", &LayerBalance::max_over_mean)
      .def_ro("min_over_mean", &LayerBalance::min_over_mean)
      .def_ro("below_tenth", &LayerBalance::below_tenth,
              "experts with less than a tenth of the mean")
      .SHOWS("layer", "max_over_mean", "min_over_mean", "below_tenth");

  nb::class_<CommMetrics>(core, "CommMetrics", "What exchanges with other ranks took of a step.")
      .def_ro("bytes", &CommMetrics::bytes)
      .def_ro("busy_s", &CommMetrics::busy_s)
      .def_ro("exposed_s", &CommMetrics::exposed_s, "seconds for which the step waited")
      .def_ro("waited_for", &CommMetrics::waited_for, "the rank that most of them were lost to")
      .SHOWS("bytes", "busy_s", "exposed_s", "waited_for");

  nb::class_<PreferenceMetrics>(core, "PreferenceMetrics", "Means over pairs of completions.")
      .def_ro("pairs", &PreferenceMetrics::pairs)
      .def_ro("accuracy", &PreferenceMetrics::accuracy, "share of pairs with a margin above 0")
      .def_ro("margin", &PreferenceMetrics::margin, "of rewards")
      .def_ro("chosen_reward", &PreferenceMetrics::chosen_reward)
      .def_ro("rejected_reward", &PreferenceMetrics::rejected_reward)
      .def_ro("chosen_log_probability", &PreferenceMetrics::chosen_log_probability)
      .def_ro("rejected_log_probability", &PreferenceMetrics::rejected_log_probability)
      .def_ro("chosen_tokens", &PreferenceMetrics::chosen_tokens)
      .def_ro("rejected_tokens", &PreferenceMetrics::rejected_tokens)
      .SHOWS("pairs", "accuracy", "margin", "chosen_reward", "rejected_reward");

  nb::class_<SparsityMetrics>(core, "SparsityMetrics",
                              "Masks of an entry of sparsity.weights that were chosen before a "
                              "step.")
      .def_ro("units", &SparsityMetrics::units)
      .def_ro("pattern", &SparsityMetrics::pattern)
      .def_ro("density", &SparsityMetrics::density, "the share of blocks or weights present")
      .def_ro("is_final", &SparsityMetrics::is_final, "whether they stay from here on")
      .SHOWS("units", "pattern", "density", "is_final");

  nb::class_<Int8Counts>(core, "Int8Counts",
                         "What int8 products of one unit counted of the rows that they quantised.")
      .def_ro("unit", &Int8Counts::unit)
      .def_ro("of_gradient", &Int8Counts::of_gradient,
              "whether of the gradient of its output; else of its input")
      .def_ro("largest", &Int8Counts::largest, "magnitude")
      .def_ro("zeroed", &Int8Counts::zeroed,
              "share of the elements other than 0 whose int8 value is 0")
      .def_ro("fallback", &Int8Counts::fallback,
              "share of blocks that were multiplied with 16 bits")
      .SHOWS("unit", "of_gradient", "largest", "zeroed", "fallback");

  nb::class_<StepMetrics>(core, "StepMetrics", "One training step, as a line of metrics.jsonl.")
      .def_ro("step", &StepMetrics::step, "1 for the first")
      .def_ro("steps", &StepMetrics::steps, "of the whole run")
      .def_ro("epoch", &StepMetrics::epoch)
      .def_ro("tokens", &StepMetrics::tokens, "unmasked labels of the step")
      .def_ro("loss", &StepMetrics::loss,
              "cross-entropy before the update, mean over the unmasked labels")
      .def_ro("aux_loss", &StepMetrics::aux_loss, "train.balance_loss without its weight")
      .def_ro("z_loss", &StepMetrics::z_loss)
      .def_ro("mtp_loss", &StepMetrics::mtp_loss, "of multi-token prediction")
      .def_ro("grad_norm", &StepMetrics::grad_norm, "global, before clipping")
      .def_ro("learning_rate", &StepMetrics::learning_rate)
      .def_ro("loss_scale", &StepMetrics::loss_scale,
              "what the loss was multiplied by; None where nothing")
      .def_ro("is_skipped", &StepMetrics::is_skipped,
              "whether a gradient was not finite, and nothing was updated")
      .def_ro("step_time_s", &StepMetrics::step_time_s)
      .def_ro("tokens_per_second", &StepMetrics::tokens_per_second, "input tokens")
      .def_ro("tflops", &StepMetrics::tflops)
      .def_ro("mfu", &StepMetrics::mfu, "None if the machine's peak is not known")
      .def_ro("peak_memory_bytes", &StepMetrics::peak_memory_bytes)
      .def_ro("planned_memory_bytes", &StepMetrics::planned_memory_bytes)
      .def_ro("experts", &StepMetrics::experts, "one LayerBalance for each MoE layer")
      .def_ro("comm", &StepMetrics::comm, "None with one rank")
      .def_ro("preference", &StepMetrics::preference, "None but for train.objective: dpo")
      .def_ro("sparsity", &StepMetrics::sparsity,
              "one SparsityMetrics for each entry whose masks were chosen")
      .def_ro("int8", &StepMetrics::int8, "Int8Counts of each unit with int8 products")
      .def_ro(
          "int8_zeroed", &StepMetrics::int8_zeroed,
          "share of the elements other than 0 whose int8 value is 0; None without int8 products")
      .def_ro("int8_fallback", &StepMetrics::int8_fallback,
              "share of blocks multiplied with 16 bits; None without int8 products")
      .SHOWS("step", "loss", "grad_norm", "learning_rate", "step_time_s");

  nb::class_<EvaluationSummary>(core, "EvaluationSummary", "The loss on held-out data.")
      .def_ro("loss", &EvaluationSummary::loss, "mean over all unmasked tokens, nats")
      .def_ro("perplexity", &EvaluationSummary::perplexity)
      .def_ro("tokens", &EvaluationSummary::tokens)
      .def_ro("experts", &EvaluationSummary::experts)
      .def_ro("preference", &EvaluationSummary::preference, "None but for train.objective: dpo")
      .SHOWS("loss", "perplexity", "tokens");

  nb::class_<MemoryShare>(core, "MemoryShare", "Bytes of one kind of use.")
      .def_ro("name", &MemoryShare::name)
      .def_ro("bytes", &MemoryShare::bytes)
      .SHOWS("name", "bytes");

  nb::class_<PlanSummary>(core, "PlanSummary",
                          "The memory that a run will need and the time of a step. str() is the "
                          "whole plan.")
      .def_ro("peak_memory_bytes", &PlanSummary::peak_memory_bytes)
      .def_ro("counts_process", &PlanSummary::counts_process,
              "whether the peak includes the memory of the process itself")
      .def_ro("memory", &PlanSummary::memory, "largest first; their sum is the peak")
      .def_ro("num_choices", &PlanSummary::num_choices,
              "values recomputed, compressed or on disk to save memory")
      .def_ro("disk", &PlanSummary::disk)
      .def_ro("step_seconds", &PlanSummary::step_seconds)
      .def_ro("price_source", &PlanSummary::price_source)
      .def_ro("text", &PlanSummary::text)
      .def_ro("file", &PlanSummary::file, "a file with the same text, and bytes by layer")
      .def("__str__", [](const PlanSummary& plan) { return plan.text; })
      .SHOWS("peak_memory_bytes", "step_seconds", "num_choices");

  nb::class_<PlannedChoice>(core, "PlannedChoice",
                            "A value that is recomputed, compressed, on disk or sliced.")
      .def_ro("value", &PlannedChoice::value)
      .def_ro("form", &PlannedChoice::form)
      .def_ro("seconds", &PlannedChoice::seconds, "added to a micro-batch")
      .SHOWS("value", "form", "seconds");

  nb::class_<PlannedStep>(core, "PlannedStep", "A step that was planned and not run.")
      .def_ro("summary", &PlannedStep::summary)
      .def_ro("choices", &PlannedStep::choices, "in the order of the model")
      .def_ro("disk_bytes", &PlannedStep::disk_bytes)
      .def("__str__", [](const PlannedStep& planned) { return planned.summary.text; })
      .SHOWS("summary", "choices", "disk_bytes");

  nb::class_<TrainSummary>(core, "TrainSummary", "A run, at its end or so far.")
      .def_ro("step", &TrainSummary::step, "the last one that was done")
      .def_ro("interrupted", &TrainSummary::interrupted)
      .def_ro("loss", &TrainSummary::loss, "of the last step")
      .def_ro("before", &TrainSummary::before, "loss on data.validation before the first step")
      .def_ro("after", &TrainSummary::after, "its last one")
      .def_ro("checkpoint", &TrainSummary::checkpoint, "directory of the newest one")
      .def_ro("planned_memory_bytes", &TrainSummary::planned_memory_bytes)
      .def_ro("peak_memory_bytes", &TrainSummary::peak_memory_bytes)
      .def_ro("experts", &TrainSummary::experts, "over the last 100 steps at most")
      .SHOWS("step", "loss", "interrupted", "checkpoint");

  nb::class_<StateInfo>(core, "StateInfo", "A parameter or a tensor of the optimizer.")
      .def_ro("name", &StateInfo::name)
      .def_prop_ro("role",
                   [](const StateInfo& state) { return std::string(to_string(state.role)); })
      .def_ro("parameter", &StateInfo::parameter, "the one that it belongs to, or is")
      .def_ro("dtype", &StateInfo::dtype, "of its elements in files: f32, bf16, u8")
      .def_prop_ro("shape",
                   [](const StateInfo& state) {
                     nb::list sizes;
                     for (const std::int64_t size : state.shape) sizes.append(size);
                     return nb::tuple(sizes);
                   })
      .SHOWS("name", "role", "dtype", "shape");

  nb::class_<GradientNorm>(core, "GradientNorm", "The norm of one parameter's gradient.")
      .def_ro("parameter", &GradientNorm::parameter)
      .def_ro("norm", &GradientNorm::norm, "L2, before clipping")
      .SHOWS("parameter", "norm");
}

}  // namespace anabatic::python
