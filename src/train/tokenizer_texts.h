// SPDX-License-Identifier: Apache-2.0
// Data files as the texts that a tokenizer is trained on.
#pragma once
#include <vector>

#include "io/data/data_format.h"
#include "io/tokenizer/bpe_trainer.h"

namespace anabatic::train {

// Every document of JSON is a text; text files come in parts, as io::read_texts cuts them. Errors
// name file:line, or file and byte offset. InvalidArgument for .bin/.idx.
io::NextText texts_of(std::vector<io::DataFile> files);

}  // namespace anabatic::train
