// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/tokenizer_file.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

// The first special tokens of files that name none (versions up to v7).
constexpr std::array<std::string_view, 20> kUnnamedSpecial{"<unk>",
                                                           "<s>",
                                                           "</s>",
                                                           "[INST]",
                                                           "[/INST]",
                                                           "[AVAILABLE_TOOLS]",
                                                           "[/AVAILABLE_TOOLS]",
                                                           "[TOOL_RESULTS]",
                                                           "[/TOOL_RESULTS]",
                                                           "[TOOL_CALLS]",
                                                           "[IMG]",
                                                           "<pad>",
                                                           "[IMG_BREAK]",
                                                           "[IMG_END]",
                                                           "[PREFIX]",
                                                           "[MIDDLE]",
                                                           "[SUFFIX]",
                                                           "[SYSTEM_PROMPT]",
                                                           "[/SYSTEM_PROMPT]",
                                                           "[TOOL_CONTENT]"};
constexpr std::size_t kBos = 1;
// A merge is looked for at every place of a token.
constexpr std::size_t kLongestToken_bytes = 1024;

std::string symbols_of(std::string_view bytes) {
  std::string symbols;
  append_byte_symbols(bytes, symbols);
  return symbols;
}

class TekkenConverter {
 public:
  explicit TekkenConverter(const JsonNode& root) : root_(root), config_(root.at("config")) {
    num_special_ = config_.at("default_num_special_tokens").as_integer(0, kMaxId);
    const JsonNode size = config_.at("default_vocab_size");
    num_tokens_ = size.as_integer(num_special_, kMaxId) - num_special_;
    const auto vocab = root.at("vocab").items();
    if (num_tokens_ < 256 || static_cast<std::size_t>(num_tokens_) > vocab.size()) {
      size.refuse(
          fmt::format("{} special tokens, the 256 bytes, and at most the {} tokens of vocab",
                      num_special_, vocab.size()));
    }
    for (std::int64_t rank = 0; rank < num_tokens_; ++rank)
      read_token(vocab[static_cast<std::size_t>(rank)], rank);
    read_special();
  }

  Json convert() const {
    Json document = empty_document();
    Json added = Json::array();
    for (std::size_t id = 0; id < special_.size(); ++id)
      added.push_back(added_token(static_cast<std::int32_t>(id), special_[id], true));
    document["added_tokens"] = std::move(added);
    document["pre_tokenizer"] = {{"type", "Sequence"},
                                 {"pretokenizers",
                                  {{{"type", "Split"},
                                    {"pattern", {{"Regex", config_.at("pattern").as_string()}}},
                                    {"behavior", "Isolated"},
                                    {"invert", false}},
                                   {{"type", "ByteLevel"},
                                    {"add_prefix_space", false},
                                    {"trim_offsets", true},
                                    {"use_regex", false}}}}};
    document["decoder"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}};
    document["model"] = model();
    if (special_.size() > kBos)
      document["post_processor"] = begin_with(special_[kBos], std::int32_t{kBos});
    return document;
  }

 private:
  void read_token(const JsonNode& node, std::int64_t rank) {
    if (node.at("rank").as_integer() != rank) node.at("rank").refuse(std::to_string(rank));
    const JsonNode field = node.at("token_bytes");
    auto bytes = decode_base64(field.as_string());
    if (!bytes || bytes->empty() || bytes->size() > kLongestToken_bytes)
      field.refuse(fmt::format("1 to {} bytes in base64", kLongestToken_bytes));
    if (rank < 256 && *bytes != std::string(1, static_cast<char>(rank)))
      field.refuse(fmt::format("the byte {} alone", rank));
    if (!ranks_.emplace(*bytes, rank).second) field.refuse("bytes that no token before has");
    tokens_.push_back(std::move(*bytes));
  }

  void read_special() {
    if (const auto list = root_.find("special_tokens")) {
      for (const JsonNode& token : list->items()) {
        const auto rank = static_cast<std::int64_t>(special_.size());
        if (token.at("rank").as_integer() != rank) token.at("rank").refuse(std::to_string(rank));
        special_.push_back(token.at("token_str").as_string());
      }
    } else {
      special_.assign(kUnnamedSpecial.begin(), kUnnamedSpecial.end());
    }
    if (static_cast<std::int64_t>(special_.size()) > num_special_) {
      config_.at("default_num_special_tokens")
          .refuse(fmt::format("at least the {} special tokens that are named", special_.size()));
    }
    for (std::int64_t id = static_cast<std::int64_t>(special_.size()); id < num_special_; ++id)
      special_.push_back(fmt::format("<SPECIAL_{}>", id));
  }

  Json model() const {
    Json vocab = Json::object();
    const auto add = [&](const std::string& token, std::int64_t id) {
      if (vocab.emplace(token, static_cast<std::uint32_t>(id)).second) return;
      root_.unsupported(fmt::format("the text `{}` for two tokens", token));
    };
    for (std::size_t id = 0; id < special_.size(); ++id)
      add(special_[id], static_cast<std::int64_t>(id));
    for (std::size_t rank = 0; rank < tokens_.size(); ++rank)
      add(symbols_of(tokens_[rank]), num_special_ + static_cast<std::int64_t>(rank));
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", true},
            {"vocab", std::move(vocab)},
            {"merges", merges()}};
  }

  // tiktoken joins the neighbours whose union has the lowest rank. Of the pairs of one union the
  // first is that with the lowest ranks, as `transformers` has it.
  Json merges() const {
    Json list = Json::array();
    for (const std::string& token : tokens_) {
      std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
      for (std::size_t at = 1; at < token.size(); ++at) {
        const auto left = ranks_.find(token.substr(0, at));
        const auto right = ranks_.find(token.substr(at));
        if (left != ranks_.end() && right != ranks_.end())
          pairs.emplace_back(left->second, right->second);
      }
      std::sort(pairs.begin(), pairs.end());
      for (const auto& [left, right] : pairs) {
        list.push_back(symbols_of(tokens_[static_cast<std::size_t>(left)]) + ' ' +
                       symbols_of(tokens_[static_cast<std::size_t>(right)]));
      }
    }
    return list;
  }

  JsonNode root_, config_;
  std::int64_t num_special_ = 0, num_tokens_ = 0;
  std::vector<std::string> tokens_;  // by rank
  std::unordered_map<std::string, std::int64_t> ranks_;
  std::vector<std::string> special_;  // by id
};

}  // namespace

Json convert_tekken(const Json& tekken, const std::string& place) {
  return TekkenConverter(JsonNode(tekken, place)).convert();
}

}  // namespace anabatic::io::tokenizer
