// SPDX-License-Identifier: Apache-2.0
// A run's events as calls of a Python object.
#pragma once
#include <nanobind/nanobind.h>

#include <exception>

#include "anabatic/events.h"

namespace anabatic::python {

// Calls on_message(severity, text), on_plan, on_step, on_validation(step, evaluation) and
// on_checkpoint(step, directory) of `target` (anabatic/training.py). Its first exception ends the
// run after the step, and comes out of rethrow(). So does Ctrl-C, without ending the run.
class Listener final : public RunListener {
 public:
  explicit Listener(nanobind::object target) : target_(std::move(target)) {}

  void on_message(Severity severity, const std::string& text) override;
  void on_plan(const PlanSummary& plan) override;
  void on_step(const StepMetrics& metrics) override;
  void on_validation(std::int64_t step, const EvaluationSummary& evaluation) override;
  void on_checkpoint(std::int64_t step, const std::string& directory) override;
  // With watch_signals also where Python has a signal to handle, such as Ctrl-C.
  bool stop_requested() override;

  void watch_signals(bool watched) { is_watching_ = watched; }
  bool has_thrown() const { return thrown_ != nullptr; }
  void rethrow();  // nothing where nothing was thrown

  nanobind::handle target() const { return target_; }
  void forget() { target_ = nanobind::none(); }  // calls nothing from then on

 private:
  template <class... Args>
  void call(const char* method, const Args&... args);

  nanobind::object target_;
  std::exception_ptr thrown_;
  std::exception_ptr interrupt_;  // Ctrl-C: it ends a run only where signals are watched
  bool is_watching_ = false;
};

}  // namespace anabatic::python
