// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/post_processor.h"

#include "base/error.h"

namespace anabatic::io::tokenizer {
namespace {

PostProcessor load_template(const JsonNode& node) {
  PostProcessor processor;
  bool is_behind_text = false;
  for (const JsonNode& piece : node.at("single").items()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (is_behind_text || sequence->at("id").as_string() != "A")
        piece.unsupported("a template of one text other than one sequence A");
      is_behind_text = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").as_string();
    for (const JsonNode& id : node.at("special_tokens").at(name).at("ids").items())
      (is_behind_text ? processor.after : processor.before).push_back(id_of(id));
  }
  if (!is_behind_text) node.at("single").unsupported("a template without the sequence A");
  return processor;
}

// ["[CLS]", 101]
std::int32_t read_pair(const JsonNode& node) {
  const auto items = node.items();
  if (items.size() != 2) node.refuse("a token and its id");
  return id_of(items[1]);
}

void apply(const JsonNode& node, int depth, PostProcessor& result) {
  if (depth > kMaxDepth) node.unsupported("a Sequence nested this deep");
  const std::string type = type_of(node);
  PostProcessor own;
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("processors").items()) apply(item, depth + 1, result);
  } else if (type == "TemplateProcessing") {
    own = load_template(node);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    own.before.push_back(read_pair(node.at("cls")));
    own.after.push_back(read_pair(node.at("sep")));
  } else if (type != "ByteLevel") {
    node.unsupported(fmt::format("the post-processor `{}`", type));
  }
  result.before.insert(result.before.begin(), own.before.begin(), own.before.end());
  result.after.insert(result.after.end(), own.after.begin(), own.after.end());
}

}  // namespace

PostProcessor load_post_processor(const JsonNode& node) {
  PostProcessor result;
  apply(node, 0, result);
  return result;
}

}  // namespace anabatic::io::tokenizer
