// SPDX-License-Identifier: Apache-2.0
#include "listener.h"

#include <nanobind/stl/string.h>

#include <utility>

namespace anabatic::python {

namespace nb = nanobind;

template <class... Args>
void Listener::call(const char* method, const Args&... args) {
  const nb::gil_scoped_acquire gil;
  if (thrown_ || target_.is_none()) return;
  try {
    target_.attr(method)(args...);
  } catch (const nb::python_error& error) {
    (error.matches(PyExc_KeyboardInterrupt) ? interrupt_ : thrown_) = std::current_exception();
  } catch (...) {
    thrown_ = std::current_exception();
  }
}

void Listener::on_message(Severity severity, const std::string& text) {
  call("on_message",
       severity == Severity::kInfo      ? "info"
       : severity == Severity::kWarning ? "warning"
                                        : "error",
       text);
}
void Listener::on_plan(const PlanSummary& plan) { call("on_plan", plan); }
void Listener::on_step(const StepMetrics& metrics) { call("on_step", metrics); }
void Listener::on_validation(std::int64_t step, const EvaluationSummary& evaluation) {
  call("on_validation", step, evaluation);
}
void Listener::on_checkpoint(std::int64_t step, const std::string& directory) {
  call("on_checkpoint", step, directory);
}

bool Listener::stop_requested() {
  if (is_watching_ && !thrown_ && !interrupt_) {
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    } catch (...) {
      interrupt_ = std::current_exception();
    }
  }
  return thrown_ || (is_watching_ && interrupt_);
}

void Listener::rethrow() {
  const std::exception_ptr interrupt = std::exchange(interrupt_, nullptr);
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  if (interrupt) std::rethrow_exception(interrupt);
}

}  // namespace anabatic::python
