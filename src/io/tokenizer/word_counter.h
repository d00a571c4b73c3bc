// SPDX-License-Identifier: Apache-2.0
// Counts the words of texts in parallel, for training.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/tokenizer/bpe_trainer.h"

namespace anabatic::io::tokenizer {

// Words as raw bytes with their counts, sorted by word. An error on a thread is rethrown.
std::vector<std::pair<std::string, std::int64_t>> count_words(const NextText& next_text,
                                                              int threads);

}  // namespace anabatic::io::tokenizer
