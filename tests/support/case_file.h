// SPDX-License-Identifier: Apache-2.0
// tests/ops/cases/OP.txt: one call of an op a line. tests/README.md has the
// grammar.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "spec/attributes.h"

namespace anabatic::testing {

struct CaseOperand {
  std::string type;                  // "D[7,13]"; D stands for each dtype of the case
  std::string recipe;                // "" for the regime's data, else "experts"
  std::vector<std::string> options;  // of the recipe: "8", "skewed"
};

struct CaseLine {
  int line = 0;
  std::vector<CaseOperand> inputs;
  std::vector<std::string> outputs;
  std::string attributes;           // "top_k=2 dtype=\"D\""
  std::vector<std::string> dtypes;  // what D stands for; one empty text when there is no D
  bool zeros_expected = false;
  bool exact = true, bounded = true;  // the data regimes to run
};

struct CaseFile {
  std::string op;
  std::string attributes{};  // of every line that has no other value of the key
  std::vector<CaseLine> cases;
  std::vector<int> exact_outputs;  // equal bits in any order of summation, given exact data
  std::vector<int> always_exact;   // equal bits whatever the data: copies and indices
  int num_skips = 0;  // refusals on a machine with every instruction set, summed over the cpu rows
};

// InvalidArgument with file and line when the text does not follow the grammar.
CaseFile read_case_file(const std::filesystem::path& path);

// "top_k=2 normalize=true" as attributes, with D replaced.
spec::Attributes parse_attributes(const std::string& text, const std::string& dtype);

// `text` with the dtype in place of a D that stands for one.
std::string replace_dtype(const std::string& text, const std::string& dtype);

}  // namespace anabatic::testing
