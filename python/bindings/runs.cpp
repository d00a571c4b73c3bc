// SPDX-License-Identifier: Apache-2.0
// Engine and Session. Every call that computes releases the GIL.
#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "anabatic/engine.h"
#include "anabatic/error.h"
#include "anabatic/session.h"
#include "bindings.h"
#include "listener.h"

namespace anabatic::python {
namespace {

namespace nb = nanobind;

using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

std::vector<Sequence> sequences_of(const nb::list& rows) {
  std::vector<Sequence> sequences;
  for (const nb::handle row : rows) {
    const nb::tuple parts = nb::cast<nb::tuple>(row);
    const auto ids = [](nb::handle array) {
      const Ids values = nb::cast<Ids>(array);
      return std::vector<std::int32_t>(values.data(), values.data() + values.size());
    };
    Sequence& sequence = sequences.emplace_back();
    sequence.tokens = ids(parts[0]);
    if (!parts[1].is_none()) sequence.labels = ids(parts[1]);
    sequence.documents = nb::cast<std::vector<std::int64_t>>(parts[2]);
  }
  return sequences;
}

// What Engine and Session have in common for Python: one thread at a time, none in a forked child,
// and the events as calls.
template <class Host>
class Run {
 public:
  Run(const Settings& settings, const std::string& yaml_file, nb::object target)
      : listener_(std::make_unique<Listener>(std::move(target))) {
    std::exception_ptr thrown;
    {
      const nb::gil_scoped_release release;
      try {
        host_ = std::make_unique<Host>(settings, yaml_file, listener_.get());
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    listener_->rethrow();
    if (thrown) std::rethrow_exception(thrown);
  }

  // body(host), without the GIL. Where a callback throws, its exception comes out.
  template <class Body>
  auto call(Body&& body) {
    const Turn turn(*this);
    try {
      auto result = [&] {
        const nb::gil_scoped_release release;
        return body(*host_);
      }();
      listener_->rethrow();
      return result;
    } catch (...) {
      listener_->rethrow();
      throw;
    }
  }

  Listener& listener() { return *listener_; }
  const Listener& listener() const { return *listener_; }
  const Host& host() const { return *host_; }
  // No other call is possible then: its states stay as they are.
  void set_failed() { has_failed_ = true; }

  // The state as an array: its own memory, read-only and of `owner`, or else a copy.
  nb::object state(nb::handle owner, const StateInfo& info) {
    const std::vector<std::size_t> shape(info.shape.begin(), info.shape.end());
    const std::span<const float> view = call([&](Host& host) { return host.view(info.name); });
    if (!view.empty())
      return nb::cast(
          nb::ndarray<nb::numpy, const float>(view.data(), shape.size(), shape.data(), owner));
    std::size_t count = 1;
    for (const std::size_t size : shape) count *= size;
    auto values = std::make_unique<float[]>(count);
    call([&](Host& host) {
      host.read(info.name, 0, std::span(values.get(), count));
      return 0;
    });
    float* data = values.release();
    const nb::capsule memory(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, float>(data, shape.size(), shape.data(), memory));
  }

 private:
  // Throws where another call is under way.
  class Turn {
   public:
    explicit Turn(Run& run) : run_(run) {
      if (::getpid() != run.pid_)
        throw Unsupported(
            "[run] expected the process that made this run, got a forked child of it, which has "
            "none of its threads: make the run there, or use the start method spawn");
      if (run.has_failed_)
        throw Error(
            "[run] expected a run that goes on, got one that an error has ended: make another one, "
            "which resumes from the last checkpoint");
      if (run_.is_busy_.exchange(true))
        throw InvalidArgument(
            "[run] expected no other call to be under way, got one by another thread or by a "
            "callback of this run");
    }
    ~Turn() { run_.is_busy_ = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Run& run_;
  };

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Host> host_;
  std::atomic<bool> is_busy_ = false;
  bool has_failed_ = false;
  pid_t pid_ = ::getpid();
};

class EngineRun : public Run<Engine> {
 public:
  using Run::Run;

  std::optional<StepMetrics> step(const std::optional<nb::list>& rows) {
    std::optional<std::vector<Sequence>> batch;
    if (rows) batch = sequences_of(*rows);
    try {
      return call([&](Engine& engine) {
        std::optional<StepMetrics> metrics = batch ? engine.step(*batch) : engine.step();
        // The run ends with the step: this saves it.
        if (listener().has_thrown()) (void)engine.step();
        return metrics;
      });
    } catch (...) {
      note_failure();
      throw;
    }
  }

  // Also asks Python between steps whether Ctrl-C was pressed.
  TrainSummary train() {
    listener().watch_signals(true);
    const struct Unwatch {
      Listener& listener;
      ~Unwatch() { listener.watch_signals(false); }
    } unwatch{listener()};
    try {
      return call([&](Engine& engine) {
        while (engine.step()) {
        }
        return engine.summary();
      });
    } catch (...) {
      note_failure();
      throw;
    }
  }

 private:
  // After an error of a step the engine has neither a run nor what it trained.
  void note_failure() {
    try {
      (void)host().summary();
    } catch (const Error&) {
      set_failed();
    }
  }
};

class SessionRun : public Run<Session> {
 public:
  using Run::Run;

  // As a run reports its steps. Without a learning rate: that of the config's schedule.
  StepMetrics step(const nb::list& rows, std::optional<double> learning_rate) {
    const std::vector<Sequence> batch = sequences_of(rows);
    const auto begin = std::chrono::steady_clock::now();
    return call([&](Session& session) {
      const double rate = learning_rate.value_or(session.scheduled_learning_rate());
      const StepResult result = session.step(batch, rate);
      StepMetrics metrics{.step = result.step,
                          .tokens = result.num_labels,
                          .loss = result.loss,
                          .aux_loss = result.aux_loss,
                          .z_loss = result.z_loss,
                          .mtp_loss = result.mtp_loss,
                          .grad_norm = result.gradient_norm,
                          .learning_rate = rate,
                          .loss_scale = result.loss_scale,
                          .is_skipped = result.is_skipped,
                          .mfu = std::nullopt,
                          .experts = result.experts,
                          .comm = std::nullopt,
                          .sparsity = result.sparsity,
                          .int8 = result.int8,
                          .int8_zeroed = result.int8_zeroed,
                          .int8_fallback = result.int8_fallback};
      metrics.step_time_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      metrics.tokens_per_second =
          static_cast<double>(session.sequences_per_step() * session.sequence_length()) /
          metrics.step_time_s;
      metrics.planned_memory_bytes = session.plan().peak_memory_bytes;
      return metrics;
    });
  }
};

const StateInfo& find_state(const std::vector<StateInfo>& states, const std::string& name) {
  for (const StateInfo& state : states)
    if (state.name == name) return state;
  throw InvalidArgument(
      fmt::format("[states] expected the name of a state (run.states), got '{}'", name));
}

// A run holds its callbacks, which may hold the run: Python's collector has to see that.
template <class Bound>
int traverse(PyObject* self, visitproc visit, void* arg) {  // as Py_VISIT names it
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Bound>(self)->listener().target().ptr());
  return 0;
}

template <class Bound>
int clear(PyObject* self) {
  nb::inst_ptr<Bound>(self)->listener().forget();
  return 0;
}

template <class Bound>
PyType_Slot* collected() {
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<Bound>)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear<Bound>)},
                                {0, nullptr}};
  return slots;
}

// What both have: states and graph.
template <class Bound, class Class>
void bind_states(Class& bound) {
  bound
      .def("states",
           [](Bound& run) {
             return run.call([](auto& host) { return std::vector<StateInfo>(host.states()); });
           })
      .def(
          "state",
          [](nb::handle self, const std::string& name) {
            Bound& run = nb::cast<Bound&>(self);
            const std::vector<StateInfo> states =
                run.call([](auto& host) { return std::vector<StateInfo>(host.states()); });
            return run.state(self, find_state(states, name));
          },
          nb::arg("name"))
      .def(
          "write",
          [](Bound& run, const std::string& name, const Values& values) {
            run.call([&](auto& host) {
              const StateInfo info = find_state(host.states(), name);
              std::size_t count = 1;
              for (const std::int64_t size : info.shape) count *= static_cast<std::size_t>(size);
              if (values.size() != count)
                throw InvalidArgument(fmt::format("[states] {}: expected {} numbers, got {}", name,
                                                  count, values.size()));
              host.write(name, 0, std::span(values.data(), values.size()));
              return 0;
            });
          },
          nb::arg("name"), nb::arg("values"))
      .def("graph", [](Bound& run) { return run.call([](auto& host) { return host.graph(); }); })
      .def("plan", [](Bound& run) { return run.call([](auto& host) { return host.plan(); }); })
      .def(
          "generate",
          [](Bound& run, const std::string& prompt) {
            return run.call([&](auto& host) { return host.generate(prompt); });
          },
          nb::arg("prompt"));
}

}  // namespace

void bind_runs(nb::module_& core) {
  nb::class_<EngineRun> engine(core, "Engine", "A run with its own data; see anabatic.Training.",
                               nb::type_slots(collected<EngineRun>()));
  engine
      .def(nb::init<const Settings&, const std::string&, nb::object>(), nb::arg("settings"),
           nb::arg("yaml_file"), nb::arg("listener"))
      .def("start",
           [](EngineRun& run) {
             run.call([](Engine& engine) {
               engine.start();
               return 0;
             });
           })
      .def("step", &EngineRun::step, nb::arg("rows").none())
      .def("train", &EngineRun::train)
      .def("summary",
           [](EngineRun& run) { return run.call([](Engine& engine) { return engine.summary(); }); })
      .def("save",
           [](EngineRun& run) { return run.call([](Engine& engine) { return engine.save(); }); })
      .def("evaluate", [](EngineRun& run) {
        return run.call([](Engine& engine) { return engine.evaluate(); });
      });
  bind_states<EngineRun>(engine);

  nb::class_<SessionRun> session(core, "Session",
                                 "A model that the host trains with its own data; see "
                                 "anabatic.Training.",
                                 nb::type_slots(collected<SessionRun>()));
  session
      .def(nb::init<const Settings&, const std::string&, nb::object>(), nb::arg("settings"),
           nb::arg("yaml_file"), nb::arg("listener"))
      .def("step", &SessionRun::step, nb::arg("rows"), nb::arg("learning_rate").none())
      .def("num_steps", [](const SessionRun& run) { return run.host().num_steps(); })
      .def(
          "save",
          [](SessionRun& run, const std::string& directory) {
            return run.call([&](Session& session) { return session.save(directory); });
          },
          nb::arg("directory"))
      .def(
          "restore",
          [](SessionRun& run, const std::string& checkpoint) {
            run.call([&](Session& session) {
              session.restore(checkpoint);
              return 0;
            });
          },
          nb::arg("checkpoint"))
      .def("gradient_norms",
           [](SessionRun& run) {
             return run.call([](Session& session) { return session.gradient_norms(); });
           })
      .def(
          "evaluate",
          [](SessionRun& run, const nb::list& rows) {
            const std::vector<Sequence> batch = sequences_of(rows);
            return run.call([&](Session& session) { return session.evaluate(batch); });
          },
          nb::arg("rows"));
  bind_states<SessionRun>(session);
}

}  // namespace anabatic::python
