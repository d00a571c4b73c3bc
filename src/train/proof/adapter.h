// SPDX-License-Identifier: Apache-2.0
// Whether an adapter does something to its model, and whether merging it does the same. What it
// cannot see: an adapter whose file has the values of one weight at the place of another, unless a
// model that another program merged is there to compare with.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace anabatic::train {

struct AdapterReport {
  std::string coverage;  // a table for people
  // Of what is 0 before training, by kind of weight: A of embeddings, B of others.
  std::vector<std::pair<std::string, double>> norms;
  std::int64_t tokens = 0;                       // that the logits are of
  double logits = 0;                             // norm of those with the adapter
  double effect = 0;                             // norm of what it changes of them
  double merge_difference = 0, merge_bound = 0;  // norm of what merging changes
  std::string not_merged;                        // why there is no merge to compare with
  std::vector<std::string> problems;             // empty: none
};

// `adapter` is a directory of PEFT's, `base` the model under it. `merged`, unless it is empty, is
// the model with the adapter merged into it; else that is made in memory. Errors of those files.
//
// Both forms compute one function, whose roundings are independent: about eight tensors a layer, of
// sums of `hidden_size` products. So they differ by 4 √(8 (layers + 1)) (√hidden_size u + v) of the
// logits, where u is the roundoff of f32, and v that of the dtype that merged weights are rounded
// to in files.
AdapterReport check_adapter(const std::string& adapter, const std::string& base,
                            const std::string& merged = "");

}  // namespace anabatic::train
