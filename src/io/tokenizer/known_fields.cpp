// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/known_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr std::size_t kMostNamed = 8;

struct Row {
  std::string_view part;    // of the document, or the type of a component
  std::string_view fields;  // each with a space after it
};
constexpr std::array kParts{
    Row{"document",
        "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder "
        "model "},
    Row{"added_tokens", "id content single_word lstrip rstrip normalized special "},
    Row{"model",
        "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
        "byte_fallback ignore_merges vocab merges unk_id "}};

// Fields of normalizers, pre-tokenizers, post-processors and decoders, in addition to `type`.
// trim_offsets, the add_prefix_space of a post-processor and str_rep concern offsets or repeat
// another field.
constexpr std::array kComponents{
    Row{"Sequence", "normalizers pretokenizers processors decoders "},
    Row{"ByteLevel", "add_prefix_space trim_offsets use_regex "},
    Row{"Split", "pattern behavior invert "},
    Row{"Digits", "individual_digits "},
    Row{"Punctuation", "behavior "},
    Row{"CharDelimiterSplit", "delimiter "},
    Row{"Delimiter", "delimiter "},
    Row{"Metaspace", "replacement str_rep prepend_scheme add_prefix_space split "},
    Row{"FixedLength", "length "},
    Row{"Replace", "pattern content "},
    Row{"Precompiled", "precompiled_charsmap "},
    Row{"Prepend", "prepend "},
    Row{"Strip", "strip_left strip_right content start stop "},
    Row{"TemplateProcessing", "single pair special_tokens "},
    Row{"BertProcessing", "sep cls "},
    Row{"RobertaProcessing", "sep cls trim_offsets add_prefix_space "},
    Row{"BPEDecoder", "suffix "}};

template <std::size_t N>
std::string_view fields_of(const std::array<Row, N>& rows, std::string_view part) {
  const auto row = std::ranges::find(rows, part, &Row::part);
  return row == rows.end() ? std::string_view() : row->fields;
}

bool is_listed(std::string_view fields, const std::string& field) {
  for (std::size_t at = 0; at < fields.size(); at = fields.find(' ', at) + 1)
    if (fields.substr(at).starts_with(field + ' ')) return true;
  return false;
}

class Search {
 public:
  void look_at(const JsonNode& node, std::string_view fields) {
    if (!node.value().is_object()) return;
    for (const auto& [field, value] : node.members())
      if (!is_listed(fields, field)) add(value.path());
  }

  // A component and, in a Sequence, those within.
  void look_at_component(const JsonNode& node, int depth = 0) {
    if (!node.value().is_object() || depth > kMaxDepth) return;
    const std::string type = type_of(node);
    const std::string_view fields = fields_of(kComponents, type);
    for (const auto& [field, value] : node.members()) {
      if (field == "type") continue;
      if (!is_listed(fields, field)) add(value.path());
      if (type == "Sequence" && value.value().is_array())
        for (const JsonNode& item : value.items()) look_at_component(item, depth + 1);
    }
  }

  std::string names() const {
    return count_ <= kMostNamed ? names_
                                : fmt::format("{} and {} others", names_, count_ - kMostNamed);
  }

 private:
  void add(const std::string& path) {
    if (++count_ <= kMostNamed) names_ += (names_.empty() ? "" : ", ") + path;
  }

  std::string names_;
  std::size_t count_ = 0;
};

}  // namespace

void warn_of_unknown_fields(const JsonNode& root) {
  Search search;
  search.look_at(root, fields_of(kParts, "document"));
  if (const auto model = root.find("model")) search.look_at(*model, fields_of(kParts, "model"));
  if (const auto tokens = root.find("added_tokens"); tokens && tokens->value().is_array())
    for (const JsonNode& token : tokens->items())
      search.look_at(token, fields_of(kParts, "added_tokens"));
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    if (const auto component = root.find(part)) search.look_at_component(*component);
  if (!search.names().empty())
    log_warning("{}: {}: unknown field, has no effect", root.place(), search.names());
}

}  // namespace anabatic::io::tokenizer
