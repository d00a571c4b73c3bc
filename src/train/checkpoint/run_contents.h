// SPDX-License-Identifier: Apache-2.0
// What a run is trained from, by content and not by name: config, tokenizer, data. A checkpoint
// holds it, and a resume says what is another.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "train/run_config.h"

namespace anabatic::train {

// {"config": .., "tokenizer": .., "train": [..], "validation": [..]}. Of data: path, bytes and a
// hash of head, tail and samples; empty lists where a file is missing, which opening them reports.
Json run_contents(const RunConfig& run);

struct ContentsChange {
  std::string maths;                 // a line each, beginning with "\n  "; empty: nothing
  std::string data;                  // of the training data, likewise
  std::vector<std::string> remarks;  // what a run may change
};
ContentsChange compare_contents(const Json& saved, const Json& now);

// Likewise of the keys that decide which numbers a step computes; the length of the run and its
// schedule may change on purpose, which is a remark.
ContentsChange compare_keys(const RunConfig& saved, const RunConfig& now);

}  // namespace anabatic::train
