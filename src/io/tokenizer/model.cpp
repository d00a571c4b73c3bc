// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/model.h"

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/unigram.h"

namespace anabatic::io::tokenizer {

std::unique_ptr<Model> load_model(const JsonNode& node) {
  const std::string type = type_of(node);
  // Old files name no type: a vocabulary with scores is a list.
  const bool has_scores = type.empty() && node.at("vocab").value().is_array();
  if (type == "Unigram" || has_scores) return std::make_unique<Unigram>(node);
  if (!type.empty() && type != "BPE") node.unsupported(fmt::format("the model `{}`", type));
  return std::make_unique<Bpe>(node);
}

}  // namespace anabatic::io::tokenizer
