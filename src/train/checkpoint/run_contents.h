// SPDX-License-Identifier: Apache-2.0
// What a run is trained from, by content and not by name: config, tokenizer, data. It is stored in
// a checkpoint, and a resume reports what has changed.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "train/run_config.h"

namespace anabatic::train {

// {"config": .., "tokenizer": .., "train": [..], "validation": [..]}. For data: path, bytes and a
// hash of head, tail and samples. The list is empty if a file is missing; opening it reports that.
Json run_contents(const RunConfig& run);

struct ContentsChange {
  std::string maths;  // changes that are refused, a line each, beginning with "\n  "; empty: none
  std::string data;   // changes of the training data, likewise
  std::vector<std::string> remarks;  // changes that are allowed
};
ContentsChange compare_contents(const Json& saved, const Json& now);

// The same for the keys that determine the numbers of a step. The length of a run and its schedule
// may change on purpose, which is a remark.
ContentsChange compare_keys(const RunConfig& saved, const RunConfig& now);

}  // namespace anabatic::train
