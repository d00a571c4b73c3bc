// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/problems.h"
#include "io/proto/sentencepiece.pb.h"
#include "io/tokenizer/gguf/gguf_pre.h"
#include "io/tokenizer/gguf/gguf_token_types.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"

namespace anabatic::io {

namespace {

using tokenizer::added_token;
using tokenizer::begin_with;
using tokenizer::convert_sentencepiece;
using tokenizer::empty_document;
using tokenizer::find_gguf_pre;
using tokenizer::gguf_pre_names;
using tokenizer::GgufPre;
using tokenizer::GgufTokenType;
using tokenizer::kMaxId;
using tokenizer::parse_document;

constexpr std::string_view kWholeKey = "tokenizer.huggingface.json";
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

// Reads `tokenizer.ggml.*` of one file.
class Reader {
 public:
  explicit Reader(const GgufMetadata& metadata) : metadata_(metadata) {}

  std::string_view model() const { return text("model").value_or(""); }

  Json document() {
    read_tokens();
    if (model() == "gpt2") return byte_level();
    if (model() == "llama") return sentencepiece();
    throw Unsupported(
        fmt::format("{}: expected gpt2 or llama, got {}", place("model"), shown(model())));
  }

  OrderedJson config() {
    read_tokens();
    OrderedJson json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"add_bos_token", adds_bos()},
                     {"add_eos_token", adds_eos()},
                     {"clean_up_tokenization_spaces", false}};
    const std::pair<const char*, const char*> tokens[] = {{"bos_token", "bos_token_id"},
                                                          {"eos_token", "eos_token_id"},
                                                          {"unk_token", "unknown_token_id"},
                                                          {"pad_token", "padding_token_id"}};
    for (const auto& [name, key] : tokens)
      if (const auto id = token_id(key)) json[name] = tokens_[static_cast<std::size_t>(*id)];
    return json;
  }

 private:
  static std::string key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }
  std::string place(std::string_view name) const {
    return fmt::format("[tokenizer] {}: key {}", metadata_.file().string(), key(name));
  }
  std::optional<std::string_view> text(std::string_view name) const {
    return metadata_.text(key(name));
  }

  void read_tokens() {
    auto tokens = metadata_.texts(key("tokens"));
    ANABATIC_REQUIRE(tokens && !tokens->empty(), "{}: is missing or empty", place("tokens"));
    ANABATIC_REQUIRE(static_cast<std::int64_t>(tokens->size()) <= kMaxId,
                     "{}: expected at most {} tokens, got {}", place("tokens"), kMaxId,
                     tokens->size());
    tokens_ = std::move(*tokens);
    for (const std::string_view token : tokens_)
      ANABATIC_REQUIRE(!find_invalid_utf8(token), "{}: expected UTF-8, got {}", place("tokens"),
                       shown(token));
    types_.assign(tokens_.size(), GgufTokenType::kNormal);
    const auto types = metadata_.integers(key("token_type"));
    if (!types) return;
    require_one_a_token("token_type", types->size());
    for (std::size_t id = 0; id < types->size(); ++id) {
      const std::int64_t type = (*types)[id];
      ANABATIC_REQUIRE(1 <= type && type <= 6,
                       "{}: expected types from 1 to 6, got {} for token {}", place("token_type"),
                       type, id);
      types_[id] = static_cast<GgufTokenType>(type);
    }
  }

  void require_one_a_token(std::string_view name, std::size_t count) const {
    ANABATIC_REQUIRE(count == tokens_.size(), "{}: expected one for each of {} tokens, got {}",
                     place(name), tokens_.size(), count);
  }

  const GgufPre& pre() const {
    const std::string_view name = text("pre").value_or("default");
    const GgufPre* found = find_gguf_pre(name);
    if (found == nullptr)
      throw Unsupported(fmt::format("{}: expected one of {}, got {}", place("pre"),
                                    gguf_pre_names(), shown(name)));
    return *found;
  }

  // Nothing where a file names no token of its vocabulary.
  std::optional<std::int32_t> token_id(std::string_view name) const {
    const auto id = metadata_.integer(key(name));
    if (!id || *id < 0 || *id >= static_cast<std::int64_t>(tokens_.size())) return std::nullopt;
    return static_cast<std::int32_t>(*id);
  }

  bool adds_bos() const {
    const GgufPre* const own = find_gguf_pre(text("pre").value_or("default"));
    const bool by_default = model() == "llama" || (own != nullptr && own->adds_bos);
    return metadata_.boolean(key("add_bos_token")).value_or(by_default);
  }
  bool adds_eos() const { return metadata_.boolean(key("add_eos_token")).value_or(false); }

  // What is put around a text; null where nothing is.
  Json post_processor() const {
    constexpr std::int32_t kNone = -1;
    const std::int32_t bos = adds_bos() ? token_id("bos_token_id").value_or(kNone) : kNone,
                       eos = adds_eos() ? token_id("eos_token_id").value_or(kNone) : kNone;
    if (bos == kNone && eos == kNone) return nullptr;
    const auto name = [&](std::int32_t id) { return tokens_[static_cast<std::size_t>(id)]; };
    const std::int32_t first = bos != kNone ? bos : eos;
    Json processor = begin_with(name(first), first);
    if (eos == kNone) return processor;
    if (bos == kNone) {
      processor["single"].erase(0);
      processor["pair"].erase(2);
      processor["pair"].erase(0);
    }
    const Json end{{"SpecialToken", {{"id", name(eos)}, {"type_id", 0}}}};
    processor["single"].push_back(end);
    processor["pair"].push_back(end);
    processor["special_tokens"][std::string(name(eos))] = {
        {"id", name(eos)}, {"ids", Json::array({eos})}, {"tokens", Json::array({name(eos)})}};
    return processor;
  }

  // ---- gpt2

  Json byte_level() const {
    const GgufPre& own = pre();
    Json document = empty_document();
    document["pre_tokenizer"] = stages(own);
    document["decoder"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
    document["post_processor"] = post_processor();
    document["added_tokens"] = added_tokens();
    document["model"] = bpe(own);
    return document;
  }

  static Json stages(const GgufPre& pre) {
    Json::array_t list;
    for (const std::string_view pattern :
         pre.own_patterns.empty() ? pre.patterns : pre.own_patterns)
      list.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
    list.push_back({{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"trim_offsets", true},
                    {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", std::move(list)}};
  }

  static Json bare_token(std::int32_t id, std::string_view token, bool is_special) {
    Json added = added_token(id, token, is_special);
    added["normalized"] = false;
    return added;
  }

  Json added_tokens() const {
    Json list = Json::array();
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      const bool is_special =
          types_[id] == GgufTokenType::kControl || types_[id] == GgufTokenType::kUnknown;
      if (is_special || types_[id] == GgufTokenType::kUserDefined)
        list.push_back(bare_token(static_cast<std::int32_t>(id), tokens_[id], is_special));
    }
    return list;
  }

  Json bpe(const GgufPre& pre) const {
    Json vocab = Json::object();
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == GgufTokenType::kUnused) continue;
      const bool is_new =
          vocab.emplace(std::string(tokens_[id]), static_cast<std::uint32_t>(id)).second;
      ANABATIC_REQUIRE(is_new, "{}: expected distinct tokens, got {} twice", place("tokens"),
                       shown(tokens_[id]));
    }
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", pre.ignores_merges},
            {"vocab", std::move(vocab)},
            {"merges", merges()}};
  }

  Json merges() const {
    const auto list = metadata_.texts(key("merges"));
    ANABATIC_REQUIRE(list, "{}: is missing", place("merges"));
    Json merges = Json::array();
    for (const std::string_view merge : *list) {
      const std::size_t space = merge.find(' ', 1);
      ANABATIC_REQUIRE(
          space != std::string_view::npos && space + 1 < merge.size() && !find_invalid_utf8(merge),
          "{}: expected two tokens with a space between, got {}", place("merges"), shown(merge));
      merges.push_back(Json::array({merge.substr(0, space), merge.substr(space + 1)}));
    }
    return merges;
  }

  // ---- llama

  // As the bytes of the tokenizer.model that the keys stand for. Unused tokens at the end are those
  // that an embedding was padded with.
  Json sentencepiece() const {
    const auto scores = metadata_.numbers(key("scores"));
    ANABATIC_REQUIRE(scores, "{}: is missing", place("scores"));
    require_one_a_token("scores", scores->size());
    std::size_t count = tokens_.size();
    while (count > 0 && types_[count - 1] == GgufTokenType::kUnused) --count;
    proto::SentencePieceModel model;
    for (std::size_t id = 0; id < count; ++id) {
      proto::SentencePieceModel::Piece& piece = *model.add_pieces();
      piece.set_piece(std::string(tokens_[id]));
      piece.set_score(static_cast<float>((*scores)[id]));
      // llama.cpp finds them in the bare text, as those of byte-level tokenizers.
      const GgufTokenType type =
          types_[id] == GgufTokenType::kUserDefined ? GgufTokenType::kControl : types_[id];
      piece.set_type(static_cast<proto::SentencePieceModel::Piece::Type>(type));
    }
    model.mutable_trainer_spec()->set_model_type(proto::SentencePieceTrainer::BPE);
    const auto is_byte = [](GgufTokenType type) { return type == GgufTokenType::kByte; };
    model.mutable_trainer_spec()->set_byte_fallback(std::ranges::any_of(types_, is_byte));
    proto::SentencePieceNormalizer& rules = *model.mutable_normalizer_spec();
    rules.set_add_dummy_prefix(metadata_.boolean(key("add_space_prefix")).value_or(true));
    rules.set_remove_extra_whitespaces(
        metadata_.boolean(key("remove_extra_whitespaces")).value_or(false));
    Json document =
        convert_sentencepiece(model.SerializeAsString(), metadata_.file().string(), false);
    document["added_tokens"] = added_tokens();
    document["post_processor"] = post_processor();
    return document;
  }

  const GgufMetadata& metadata_;
  std::vector<std::string_view> tokens_;
  std::vector<GgufTokenType> types_;
};

}  // namespace

bool has_gguf_tokenizer(const GgufMetadata& metadata) {
  const std::string_view model = Reader(metadata).model();
  return metadata.find(kWholeKey) != nullptr ||
         (!model.empty() && model != "none" && model != "no_vocab");
}

Json gguf_tokenizer_document(const GgufMetadata& metadata) {
  if (const auto whole = metadata.text(kWholeKey))
    return parse_document(*whole, fmt::format("{}: {}", metadata.file().string(), kWholeKey));
  return Reader(metadata).document();
}

std::string gguf_tokenizer_json(const GgufMetadata& metadata) {
  if (const auto whole = metadata.text(kWholeKey)) return std::string(*whole);
  return dump_json(Reader(metadata).document(), 2);
}

std::string gguf_tokenizer_config(const GgufMetadata& metadata) {
  return dump_json(Reader(metadata).config(), 2) + "\n";
}

std::string gguf_chat_template(const GgufMetadata& metadata) {
  return std::string(metadata.text(kTemplateKey).value_or(""));
}

}  // namespace anabatic::io
