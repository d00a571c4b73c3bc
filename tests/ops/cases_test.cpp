// SPDX-License-Identifier: Apache-2.0
// Every op x every kernel row that supports it x every line of cases/OP.txt x dtypes.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>  // program_invocation_short_name
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "kernels/cpu/widened/widened_rows.h"
#include "ops/kernel_runner.h"
#include "ops/table.h"
#include "support/comparator.h"
#include "support/random_data.h"
#include "support/rows_under_test.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

const std::filesystem::path kCases = ANABATIC_SOURCE_DIR "/tests/ops/cases";

// A planner's node, never a kernel call.
constexpr std::string_view kNoKernel = "accumulate";

bool has_f16(const OpCall& call) {
  const auto is_f16 = [](const TensorType& type) { return type.dtype == DType::kFloat16; };
  return std::ranges::any_of(call.inputs, is_f16, &Values::type) ||
         std::ranges::any_of(call.outputs, is_f16);
}

bool holds(const std::vector<int>& list, std::size_t i) {
  return std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end();
}

// Sanitized kernels run, and other builds say whether their values are right.
//
// That another run of a row is on. A sanitizer finds on three what it finds on fewer.
std::vector<int> thread_counts(const kernels::Kernel& kernel) {
  if (is_reference(kernel)) return kIsSanitized ? std::vector<int>{} : std::vector{1};
  return kIsSanitized ? std::vector{3} : std::vector{1, 2, 3};
}

class OpCases : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    file_ = read_case_file(kCases / (GetParam() + ".txt"));
    schema_ = ops::find_op(file_.op);
    ASSERT_NE(schema_, nullptr) << "cases/" << file_.op << ".txt names no op";
  }

  // Calls body(call, line, seed, where) for every line, dtype and seed of a regime.
  template <class Body>
  void for_calls(Regime regime, Body&& body) {
    const char* name = regime == Regime::kExact ? "exact" : "bounded";
    for_lines(regime, [&](const CaseLine& line, const std::string& dtype) {
      const auto seed = static_cast<std::uint64_t>(1000 * line.line) + dtype.size();
      const std::string where =
          fmt::format("{}.txt:{} {} {} seed {}", file_.op, line.line, dtype, name, seed);
      SCOPED_TRACE(where);
      body(make_call(file_, line, dtype, regime, seed), line, seed, where);
    });
  }

  // Calls body(call, where) for every bounded line and dtype, with calls that have no data.
  template <class Body>
  void for_types(Body&& body) {
    for_lines(Regime::kBounded, [&](const CaseLine& line, const std::string& dtype) {
      body(call_without_data(file_, line, dtype),
           fmt::format("{}.txt:{} {}", file_.op, line.line, dtype));
    });
  }

  // As for_calls, with every kernel row under test that takes the call.
  template <class Body>
  void for_kernels(Regime regime, Body&& body) {
    int num_runs = 0;
    for_calls(regime, [&](const OpCall& call, const CaseLine& line, std::uint64_t seed,
                          const std::string& where) {
      known_ = {};
      for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
        if (!is_under_test(kernel->name) || !supports(*kernel, call)) continue;
        ++num_runs;
        const std::string repro = fmt::format(
            "{} --gtest_filter={}; kernel {}, {}", program_invocation_short_name,
            ::testing::UnitTest::GetInstance()->current_test_info()->name(), kernel->name, where);
        body(*kernel, call, line, seed, CompareOptions{repro, line.zeros_expected});
      }
    });
    EXPECT_GT(num_runs, 0) << "no kernel ran: the case file holds no case of this regime";
  }

  RunResult run(const kernels::Kernel& kernel, const OpCall& call, const RunOptions& options,
                const std::string& repro) {
    RunResult result = run_kernel(kernel, *schema_, call, options);
    EXPECT_EQ(result.violation, "") << repro;
    return result;
  }

  // RepeatBitsOnAnyNumberOfThreads runs the slow reference, once.
  void run_alone(const kernels::Kernel& kernel, const OpCall& call, std::span<const Values> before,
                 const CompareOptions& options) {
    if (!is_reference(kernel)) (void)run(kernel, call, {.before = before}, options.repro);
  }

  // Rows of larger matrices that others have begun, and results in bf16, are assigned.
  bool accumulates(const OpCall& call) const {
    return schema_->can_accumulate && call.outputs[0].dtype != DType::kBFloat16 &&
           call.outputs[0].dtype != DType::kFloat16 &&
           (schema_->must_alias == nullptr || schema_->must_alias(call.attributes).empty());
  }

  // `before` for every output of a ⊕ op.
  std::vector<Values> earlier_gradients(const OpCall& call, Regime regime, std::uint64_t seed) {
    std::vector<Values> before;
    for (std::size_t o = 0; o < call.outputs.size(); ++o) {
      before.push_back(random_values(call.outputs[o], regime, seed, 100 + o));
      // Multiples of 0.5, so that adding an integer never gives a zero.
      if (regime == Regime::kExact)
        for (double& value : before.back().data) value += 0.5;
    }
    return before;
  }

  void expect_exact(const kernels::Kernel& kernel, const OpCall& call,
                    const std::vector<int>& outputs, std::span<const Values> before,
                    const CompareOptions& options) {
    if (kIsSanitized) return run_alone(kernel, call, before, options);
    auto& reference = known_.reference[before.empty()];
    if (!reference) reference = run_reference(call, before);
    const std::vector<HostTensor>& wants = *reference;
    const RunResult got = run(kernel, call, {.before = before}, options.repro);
    for (std::size_t o = 0; o < wants.size(); ++o)
      if (holds(outputs, o)) {
        EXPECT_EQ(compare_bits(got.outputs[o], wants[o], options).report, "") << "output " << o;
      }
  }

  void expect_bounded(const kernels::Kernel& kernel, const OpCall& call,
                      std::span<const Values> before, const CompareOptions& options) {
    if (kIsSanitized) return run_alone(kernel, call, before, options);
    if (!known_.in_double) known_.in_double = run_in_double(call);
    auto& tolerances = known_.tolerances[before.empty()][is_coarser(kernel.name)];
    if (!tolerances) tolerances = output_tolerances(call, *known_.in_double, before, kernel.name);
    const RunResult got = run(kernel, call, {.before = before}, options.repro);
    std::vector<Values> wants = *known_.in_double;
    for (std::size_t o = 0; o < wants.size(); ++o) {
      wants[o].type = call.outputs[o];
      for (std::size_t i = 0; !before.empty() && i < wants[o].data.size(); ++i)
        wants[o].data[i] += before[o].data[i];
      if (o == 1 && sums_its_squares(call.op)) wants[o].data = {sum_of_squares(wants[0])};
      EXPECT_EQ(compare(got.outputs[o].values(), wants[o], (*tolerances)[o], options).report, "")
          << "output " << o;
    }
  }

  void expect_equal_outputs(const RunResult& got, const RunResult& want, const char* what,
                            const std::string& repro) {
    for (std::size_t o = 0; o < want.outputs.size(); ++o)
      EXPECT_EQ(compare_bits(got.outputs[o], want.outputs[o], {repro, true}).report, "")
          << what << ", output " << o;
  }

  // Calls body(line, dtype) for every line and dtype of a regime.
  template <class Body>
  void for_lines(Regime regime, Body&& body) {
    for (const CaseLine& line : file_.cases) {
      if (!(regime == Regime::kExact ? line.exact : line.bounded)) continue;
      for (const std::string& dtype : line.dtypes) body(line, dtype);
    }
  }

  // What every row is compared with, made once a call: in double within a tolerance, and with the
  // bits of `ref`. First index: whether the output is assigned; second: is_coarser.
  struct Known {
    std::optional<std::vector<Values>> in_double;
    std::optional<std::vector<std::vector<double>>> tolerances[2][2];
    std::optional<std::vector<HostTensor>> reference[2];
  };

  CaseFile file_;
  const ir::OpSchema* schema_ = nullptr;
  Known known_;
};

// Ops with an output that is a copy or a sum of products of the inputs.
class ExactOpCases : public OpCases {};

TEST_P(ExactOpCases, EqualReferenceOnExactData) {
  std::vector<int> outputs = file_.exact_outputs;
  outputs.insert(outputs.end(), file_.always_exact.begin(), file_.always_exact.end());
  for_kernels(Regime::kExact, [&](const kernels::Kernel& kernel, const OpCall& call,
                                  const CaseLine&, std::uint64_t seed,
                                  const CompareOptions& options) {
    expect_exact(kernel, call, outputs, {}, options);
    if (accumulates(call))
      expect_exact(kernel, call, outputs, earlier_gradients(call, Regime::kExact, seed), options);
  });
}

TEST_P(OpCases, StayWithinBounds) {
  for_kernels(
      Regime::kBounded, [&](const kernels::Kernel& kernel, const OpCall& call, const CaseLine&,
                            std::uint64_t seed, const CompareOptions& options) {
        expect_bounded(kernel, call, {}, options);
        if (!file_.always_exact.empty())
          expect_exact(kernel, call, file_.always_exact, {}, options);
        if (accumulates(call))
          expect_bounded(kernel, call, earlier_gradients(call, Regime::kBounded, seed), options);
      });
}

TEST_P(OpCases, RepeatBitsOnAnyNumberOfThreads) {
  for_kernels(
      Regime::kBounded, [&](const kernels::Kernel& kernel, const OpCall& call, const CaseLine&,
                            std::uint64_t seed, const CompareOptions& options) {
        const RunResult want = run(kernel, call, {}, options.repro);
        for (const int num_threads : thread_counts(kernel))
          expect_equal_outputs(run(kernel, call, {.num_threads = num_threads}, options.repro), want,
                               "another run",
                               fmt::format("{}, {} threads", options.repro, num_threads));
        if (!accumulates(call) || is_reference(kernel)) return;
        const std::vector<Values> before = earlier_gradients(call, Regime::kBounded, seed);
        expect_equal_outputs(run(kernel, call, {.num_threads = 3, .before = before}, options.repro),
                             run(kernel, call, {.before = before}, options.repro),
                             "+= on 3 threads", options.repro);
      });
}

class InPlaceOpCases : public OpCases {};

TEST_P(InPlaceOpCases, WriteInPlaceWhereTheSchemaLetsThem) {
  int num_aliased = 0;
  for_kernels(Regime::kBounded, [&](const kernels::Kernel& kernel, const OpCall& call,
                                    const CaseLine&, std::uint64_t, const CompareOptions& options) {
    for (std::size_t o = 0; o < call.outputs.size(); ++o)
      num_aliased += aliased_input(*schema_, call, o) >= 0 ? 1 : 0;
    const RunResult want = run(kernel, call, {}, options.repro);
    for (const int num_threads : is_reference(kernel) ? std::vector{1} : std::vector{1, 2})
      expect_equal_outputs(
          run(kernel, call, {.num_threads = num_threads, .in_place = true}, options.repro), want,
          "in place", options.repro);
  });
  EXPECT_GT(num_aliased, 0);
}

// Refusals for want of an instruction set are printed; all others are part of the case file.
TEST_P(OpCases, SkipOnlyWhatTheCaseFileStates) {
  int num_skips = 0;
  std::set<std::string> reasons;
  for_types([&](const OpCall& call, const std::string& where) {
    for (const kernels::Kernel* kernel : kernels::candidates(call.op)) {
      // Rows of a table are for f16 or for the others; the next test asks for the former.
      if (kernels::cpu::is_widened(kernel->name) || has_f16(call)) continue;
      const kernels::Support here = supports(*kernel, call);
      const kernels::Support anywhere = supports_on_any_machine(*kernel, call);
      num_skips += anywhere ? 0 : 1;
      if (here) continue;
      EXPECT_FALSE(is_reference(*kernel)) << where << ": " << here.reason;
      reasons.insert(fmt::format("skip: {}: {} (first at {})", kernel->name, here.reason, where));
    }
  });
  for (const std::string& reason : reasons) fmt::print("{}\n", reason);
  EXPECT_EQ(num_skips, file_.num_skips) << "state it as @skips in cases/" << file_.op << ".txt";
}

// Calls with f16 are no calls of `ref`. No run has these operands in f16, nor quantised ones next
// to it.
TEST_P(OpCases, HaveARowOfTheCpuForF16) {
  constexpr std::array kNeverInF16 = {"cross_entropy", "exchange_rows", "label_log_probabilities",
                                      "sum_squares", "sum_squares_of_parts"};
  if (std::ranges::find(kNeverInF16, file_.op) != kNeverInF16.end()) return;
  const auto has_quantized = [](const OpCall& call) {
    return std::ranges::any_of(call.inputs, &TensorType::is_quantized, &Values::type) ||
           std::ranges::any_of(call.outputs, &TensorType::is_quantized);
  };
  for_types([&](const OpCall& call, const std::string& where) {
    if (!has_f16(call) || has_quantized(call)) return;
    const auto rows = kernels::candidates(call.op);
    EXPECT_TRUE(std::ranges::any_of(rows, [&](const kernels::Kernel* row) {
      return !is_reference(*row) && supports(*row, call);
    })) << where;
  });
}

TEST_P(OpCases, StateTheTypesThatTheOpInfers) {
  for_types([&](const OpCall& call, const std::string& where) {
    std::vector<TensorType> inputs;
    for (const Values& input : call.inputs) inputs.push_back(input.type);
    EXPECT_GE(static_cast<int>(inputs.size()), schema_->min_inputs) << where;
    if (schema_->max_inputs >= 0) {
      EXPECT_LE(static_cast<int>(inputs.size()), schema_->max_inputs) << where;
    }
    EXPECT_EQ(schema_->infer(inputs, call.attributes), call.outputs) << where;
  });
}

std::vector<std::string> case_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCases))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool has_rows_under_test(const std::string& op) {
  const auto rows = kernels::candidates(op);
  return std::any_of(rows.begin(), rows.end(),
                     [](const kernels::Kernel* row) { return is_under_test(row->name); });
}

template <class Predicate>
std::vector<std::string> ops_where(Predicate&& predicate) {
  std::vector<std::string> names;
  for (const std::string& name : case_files())
    if (has_rows_under_test(name) && predicate(name)) names.push_back(name);
  return names;
}

bool has_exact_outputs(const std::string& op) {
  const CaseFile file = read_case_file(kCases / (op + ".txt"));
  return !file.exact_outputs.empty() || !file.always_exact.empty();
}

bool may_overwrite(const std::string& op) {
  const ir::OpSchema* schema = ops::find_op(op);
  return schema != nullptr && schema->may_alias != nullptr;
}

std::string op_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(All, OpCases,
                         ::testing::ValuesIn(ops_where([](const std::string&) { return true; })),
                         op_name);
INSTANTIATE_TEST_SUITE_P(All, ExactOpCases, ::testing::ValuesIn(ops_where(has_exact_outputs)),
                         op_name);
INSTANTIATE_TEST_SUITE_P(All, InPlaceOpCases, ::testing::ValuesIn(ops_where(may_overwrite)),
                         op_name);

TEST(OpTable, HasAReferenceKernelAndACaseFileForEveryOp) {
  std::set<std::string> with_file, with_kernel;
  for (const std::string& name : case_files()) with_file.insert(name);
  for (const kernels::Kernel& kernel : kernels::ref_table())
    with_kernel.insert(std::string(kernel.op));
  std::set<std::string> ops;
  for (const ir::OpSchema* op : ops::all_ops())
    if (op->name != kNoKernel) ops.insert(std::string(op->name));
  EXPECT_EQ(with_file, ops);
  EXPECT_EQ(with_kernel, ops);
}

TEST(KernelTables, AreSortedByOpAndNameTheirRowsOnce) {
  for (const kernels::DeviceTable& device : kernels::device_tables()) {
    const std::span<const kernels::Kernel> table = device.rows();
    std::set<std::string_view> names;
    for (const kernels::Kernel& kernel : table) {
      EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
      EXPECT_TRUE(kernel.name.starts_with(std::string(device.device) + ":")) << kernel.name;
      EXPECT_NE(ops::find_op(kernel.op), nullptr) << kernel.name;
      EXPECT_EQ(kernels::find_kernel(kernel.name), &kernel);
    }
    EXPECT_TRUE(std::is_sorted(
        table.begin(), table.end(),
        [](const kernels::Kernel& a, const kernels::Kernel& b) { return a.op < b.op; }));
  }
  EXPECT_EQ(kernels::find_kernel("ref:no_such_op"), nullptr);
  EXPECT_TRUE(kernels::candidates("no_such_op").empty());
}

TEST(KernelTables, PutReferenceKernelsLast) {
  for (const ir::OpSchema* op : ops::all_ops()) {
    if (op->name == kNoKernel) continue;
    const auto rows = kernels::candidates(op->name);
    ASSERT_FALSE(rows.empty()) << op->name;
    EXPECT_EQ(rows.back()->name, "ref:" + std::string(op->name));
  }
}

}  // namespace
}  // namespace anabatic::testing
