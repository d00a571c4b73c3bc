// SPDX-License-Identifier: Apache-2.0
// A small forward graph around the ops of a benchmark, as in a model, and the values that it runs
// on.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/benchmark.h"
#include "ir/op_schema.h"
#include "spec/sparsity.h"

namespace anabatic::bench {

// Nodes of this segment provide inputs and a scalar to differentiate; they are not timed.
inline constexpr std::string_view kSeedSegment = "seed";

// A part, and the phases of the nodes whose time it counts.
struct TimedPart {
  Part part;
  std::vector<ir::Phase> phases;
  std::string_view segment{};  // of that one alone; empty: of all
};

struct GraphCase {
  ir::Graph graph;
  std::int64_t num_tokens = 0;
  std::map<std::string, std::vector<std::int32_t>, std::less<>> batch;  // without labels
  // Labels for which only the first tokens count: -100 for rows of the others.
  std::function<std::vector<std::int32_t>(std::int64_t first_tokens)> labels;
  // Value of element i of a parameter, in row-major order. A pure function, so that a case of fewer
  // tokens has the same values.
  std::function<float(std::string_view parameter, std::int64_t i)> value;
  std::vector<TimedPart> parts;
  bool with_update = false;
  // What weights with a mask have, and the masks by name.
  spec::SparsityOptions sparsity{};
  std::map<std::string, std::vector<std::uint8_t>, std::less<>> masks{};
  // A pass without which the case runs too, in turn: parts "without_pass.NAME". Empty: none.
  std::string without_pass{};
};

// Makes a case whose values do not depend on later tokens. `num_tokens` 0: as many as the settings
// ask for, else only the first ones.
using MakeCase = std::function<GraphCase(std::int64_t num_tokens)>;

// Builds a case around `rows` → ops → `finish`.
class CaseBuilder {
 public:
  explicit CaseBuilder(std::string_view name, std::int64_t num_tokens);

  // [T, width] activations that have a gradient: rows of a table that an embedding reads, normal
  // deviates.
  ir::ValueId rows(std::string_view name, std::int64_t width);
  // Normal deviates of 1 / sqrt(last dimension), so that products keep their size; 1-D: near 1.
  ir::ValueId parameter(std::string_view name, const std::vector<std::int64_t>& shape);
  ir::ValueId batch(std::string_view name, const std::vector<std::int64_t>& shape,
                    std::vector<std::int32_t> values);
  // Nodes from here on are timed.
  ir::GraphBuilder& timed(std::string_view segment);
  // Adds the scalar to differentiate. y is [T·top_k, width], whose row r belongs to slot
  // slot_of_row[r] (of token slot / top_k); empty: row r is slot r. Labels count up with slots,
  // -100 for tokens that are not among the first.
  GraphCase finish(ir::ValueId y, std::vector<TimedPart> parts, std::int64_t top_k = 1,
                   std::vector<std::int32_t> slot_of_row = {});
  // The same for logits that are themselves the work. `ignored`: share of labels that are -100.
  GraphCase finish_with_loss(ir::ValueId logits, std::vector<TimedPart> parts, double ignored);

  GraphCase& made() { return case_; }

 private:
  void tag(std::string_view segment);
  GraphCase close(ir::ValueId logits, std::vector<TimedPart> parts);

  GraphCase case_;
  ir::GraphBuilder builder_;
  std::map<std::string, float, std::less<>> deviations_;  // of parameters
};

struct GemmSizes {
  std::int64_t rows, in, out;
  double element;       // bytes
  double outliers = 0;  // the share of blocks of 128 of x that have one
};
// Rows "x" [num_tokens, in] by "weight" [out, in]; parts for each product. Sizes count FLOPs.
GraphCase gemm_case(const GemmSizes& sizes, std::int64_t num_tokens);

// A deviate in [-√3, √3) of variance 1, by name and index.
float deviate(std::string_view name, std::int64_t i);

// `team`: of several benchmarks that take turns; null makes one.
std::unique_ptr<Benchmark> make_graph_benchmark(const train::RunConfig& run, MakeCase make,
                                                bool accumulate,
                                                std::shared_ptr<device::ThreadTeam> team = nullptr);

}  // namespace anabatic::bench
