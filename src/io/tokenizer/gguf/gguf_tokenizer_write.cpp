// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "io/proto/sentencepiece.pb.h"
#include "io/tokenizer/gguf/gguf_pre.h"
#include "io/tokenizer/gguf/gguf_token_types.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/tokenizer_file.h"

namespace anabatic::io {

namespace {

using tokenizer::convert_sentencepiece;
using tokenizer::find_gguf_pre;
using tokenizer::gguf_pre_names;
using tokenizer::GgufPre;
using tokenizer::GgufTokenType;
using tokenizer::id_of;
using tokenizer::kDigitPattern;
using tokenizer::kGpt2Pattern;
using tokenizer::kMaxDepth;
using tokenizer::parse_document;
using tokenizer::type_of;

constexpr std::string_view kSpace = "\u2581";

// The components of a kind, Sequences flattened.
void flatten(const JsonNode& node, const char* members, int depth, std::vector<JsonNode>& parts) {
  if (depth > kMaxDepth) node.unsupported("a Sequence nested this deep");
  if (type_of(node) != "Sequence") {
    parts.push_back(node);
    return;
  }
  for (const JsonNode& item : node.at(members).items()) flatten(item, members, depth + 1, parts);
}

std::vector<JsonNode> components(const JsonNode& root, const char* kind, const char* members) {
  std::vector<JsonNode> parts;
  if (const auto node = root.find(kind)) flatten(*node, members, 0, parts);
  return parts;
}

// A pattern may hold line ends as they are.
std::string spelled(std::string pattern) {
  for (const auto& [from, to] : {std::pair("\r", "\\r"), std::pair("\n", "\\n")})
    for (std::size_t at = 0; (at = pattern.find(from, at)) != std::string::npos; at += 2)
      pattern.replace(at, 1, to);
  return pattern;
}

[[noreturn]] void no_place(const JsonNode& node) {
  node.unsupported(fmt::format("`{}` in a GGUF file", type_of(node)));
}

// The patterns of a byte-level tokenizer, in the order in which they cut.
std::vector<std::string> patterns_of(const std::vector<JsonNode>& stages) {
  std::vector<std::string> patterns;
  for (const JsonNode& stage : stages) {
    const std::string type = type_of(stage);
    if (type == "ByteLevel") {
      if (stage.bool_or("add_prefix_space", true))
        stage.at("add_prefix_space").unsupported("a space before a text in a GGUF file");
      if (stage.bool_or("use_regex", true)) patterns.emplace_back(kGpt2Pattern);
    } else if (type == "Digits" && stage.bool_or("individual_digits", false)) {
      patterns.emplace_back(kDigitPattern);
    } else if (type == "Split" && stage.at("behavior").as_string() == "Isolated" &&
               !stage.bool_or("invert", false) && stage.at("pattern").has("Regex")) {
      patterns.push_back(spelled(stage.at("pattern").at("Regex").as_string()));
    } else {
      no_place(stage);
    }
  }
  return patterns;
}

struct Merge {
  std::string left, right;
  bool operator==(const Merge&) const = default;
};

// "a b" or ["a", "b"].
std::vector<Merge> merges_of(const JsonNode& model) {
  std::vector<Merge> merges;
  for (const JsonNode& merge : model.at("merges").items()) {
    if (merge.value().is_array()) {
      const auto pair = merge.as_strings();
      if (pair.size() != 2) merge.refuse("two tokens");
      merges.push_back({pair[0], pair[1]});
      continue;
    }
    const std::string text = merge.as_string();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos) merge.refuse("two tokens with a space between");
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return merges;
}

class Writer {
 public:
  Writer(const JsonNode& root, const GgufTokenizerFields& fields, GgufKeys& keys)
      : root_(root), model_(root.at("model")), fields_(fields), keys_(keys) {
    if (type_of(model_) != "BPE")
      model_.unsupported(fmt::format("a model `{}` in a GGUF file", type_of(model_)));
    stages_ = components(root, "pre_tokenizer", "pretokenizers");
    read_tokens();
  }

  void write() {
    const bool is_byte_level = std::ranges::any_of(
        stages_, [](const JsonNode& stage) { return type_of(stage) == "ByteLevel"; });
    if (is_byte_level)
      write_byte_level();
    else
      write_sentencepiece();
  }

 private:
  void read_tokens() {
    for (const auto& [token, id] : model_.at("vocab").members())
      place(id_of(id), token, GgufTokenType::kNormal);
    if (const auto added = root_.find("added_tokens"))
      for (const JsonNode& token : added->items())
        place(id_of(token.at("id")), token.at("content").as_string(),
              token.bool_or("special", false) ? GgufTokenType::kControl
                                              : GgufTokenType::kUserDefined);
    const auto count = static_cast<std::size_t>(fields_.vocab_size);
    if (tokens_.size() > count)
      root_.unsupported(
          fmt::format("more tokens, {}, than the model's vocab_size {}", tokens_.size(), count));
    tokens_.resize(count);
    types_.resize(count, GgufTokenType::kUnused);
    for (std::size_t id = 0; id < count; ++id)
      if (types_[id] == GgufTokenType::kUnused) tokens_[id] = fmt::format("[PAD{}]", id);
  }

  void place(std::int32_t id, const std::string& token, GgufTokenType type) {
    const auto at = static_cast<std::size_t>(id);
    if (tokens_.size() <= at) {
      tokens_.resize(at + 1);
      types_.resize(at + 1, GgufTokenType::kUnused);
    }
    tokens_[at] = token;
    types_[at] = type;
  }

  void write_byte_level() {
    const std::vector<std::string> patterns = patterns_of(stages_);
    const bool ignores_merges = model_.bool_or("ignore_merges", false);
    const GgufPre* pre = find_gguf_pre(patterns, ignores_merges);
    if (pre == nullptr)
      root_.at("pre_tokenizer")
          .unsupported(fmt::format("a way to cut words{} that is none of llama.cpp's {}",
                                   ignores_merges ? ", with ignore_merges," : "",
                                   gguf_pre_names()));
    // llama.cpp does not normalise; the files of qwen2 have NFC.
    for (const JsonNode& part : components(root_, "normalizer", "normalizers"))
      if (type_of(part) != "NFC") no_place(part);
    begin("gpt2");
    keys_.add_text("tokenizer.ggml.pre", pre->names.front());
    write_tokens();
    std::vector<std::string> merges;
    for (const Merge& merge : merges_of(model_)) merges.push_back(merge.left + ' ' + merge.right);
    const std::vector<std::string_view> views(merges.begin(), merges.end());
    keys_.add_texts("tokenizer.ggml.merges", views);
    finish();
  }

  // As a tokenizer.model with user-defined pieces is read: a text that is one of them gets none.
  static bool puts_space_unless_added(const JsonNode& replace) {
    const Json pattern = replace.at("pattern").value().value("Regex", Json());
    return replace.at("content").as_string() == kSpace && pattern.is_string() &&
           pattern.get<std::string>().starts_with("\\A(?!\\z)(?!(?:");
  }

  // Whether a text begins with a space, as the normalizer or the pre-tokenizer says.
  bool puts_space_first() const {
    bool is_first = false, is_escaped = false;
    for (const JsonNode& part : components(root_, "normalizer", "normalizers")) {
      const std::string type = type_of(part);
      if (type == "Prepend" && part.at("prepend").as_string() == kSpace) {
        is_first = true;
      } else if (type == "Replace" && puts_space_unless_added(part)) {
        is_first = true;
      } else if (type == "Replace" && part.at("content").as_string() == kSpace &&
                 part.at("pattern").value() == Json{{"String", " "}}) {
        is_escaped = true;
      } else {
        no_place(part);
      }
    }
    for (const JsonNode& stage : stages_) {
      const bool is_whole = type_of(stage) == "Metaspace" && !stage.bool_or("split", true) &&
                            stage.at("replacement").as_string() == kSpace;
      if (!is_whole) no_place(stage);
      const auto scheme = stage.find("prepend_scheme");
      is_first = is_first || !scheme || scheme->as_string() != "never";
      is_escaped = true;
    }
    if (!is_escaped)
      root_.unsupported(
          "a BPE that neither is byte-level nor writes spaces as \u2581 in a GGUF file");
    return is_first;
  }

  void write_sentencepiece() {
    const bool has_space = puts_space_first();
    if (!model_.bool_or("byte_fallback", false)) model_.unsupported("a BPE without byte_fallback");
    const auto unknown = model_.find("unk_token");
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (unknown && tokens_[id] == unknown->as_string())
        types_[id] = GgufTokenType::kUnknown;
      else if (is_byte(tokens_[id]))
        types_[id] = GgufTokenType::kByte;
    }
    const std::vector<float> scores = scores_of_merges();
    begin("llama");
    keys_.add_text("tokenizer.ggml.pre", "default");
    write_tokens();
    keys_.add_floats("tokenizer.ggml.scores", scores);
    keys_.add_bool("tokenizer.ggml.add_space_prefix", has_space);
    finish();
  }

  static bool is_byte(std::string_view token) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
           kHex.find(token[3]) != kHex.npos && kHex.find(token[4]) != kHex.npos;
  }

  // The earlier its first merge, the better a token's score. Merges have to follow from the scores.
  std::vector<float> scores_of_merges() const {
    const std::vector<Merge> merges = merges_of(model_);
    std::unordered_map<std::string, std::size_t> ranks;
    for (const Merge& merge : merges) ranks.try_emplace(merge.left + merge.right, ranks.size());
    std::vector<float> scores(tokens_.size(), 0.0f);
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != GgufTokenType::kNormal) continue;
      const auto rank = ranks.find(tokens_[id]);
      scores[id] = -static_cast<float>(rank == ranks.end() ? ranks.size() : rank->second);
    }
    if (merges_by(scores) != merges)
      model_.at("merges").unsupported(
          "merges that do not follow from scores of tokens, as those of "
          "SentencePiece do,");
    return scores;
  }

  std::vector<Merge> merges_by(const std::vector<float>& scores) const {
    proto::SentencePieceModel model;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      proto::SentencePieceModel::Piece& piece = *model.add_pieces();
      piece.set_piece(tokens_[id]);
      piece.set_score(scores[id]);
      // A token that is not used takes no part, as one of the model's.
      const GgufTokenType type =
          types_[id] == GgufTokenType::kUnused ? GgufTokenType::kControl : types_[id];
      piece.set_type(static_cast<proto::SentencePieceModel::Piece::Type>(type));
    }
    model.mutable_trainer_spec()->set_model_type(proto::SentencePieceTrainer::BPE);
    const Json document = convert_sentencepiece(model.SerializeAsString(), "tokenizer.json", false);
    return merges_of(JsonNode(document, "tokenizer.json").at("model"));
  }

  void begin(std::string_view model) { keys_.add_text("tokenizer.ggml.model", model); }

  void write_tokens() {
    const std::vector<std::string_view> views(tokens_.begin(), tokens_.end());
    keys_.add_texts("tokenizer.ggml.tokens", views);
    std::vector<std::int64_t> types;
    for (const GgufTokenType type : types_) types.push_back(static_cast<std::int64_t>(type));
    keys_.add_integers("tokenizer.ggml.token_type", GgufType::kInt32, types);
  }

  void finish() {
    const std::pair<const char*, std::optional<std::int64_t>> ids[] = {
        {"bos_token_id", fields_.bos},
        {"eos_token_id", fields_.eos},
        {"unknown_token_id", fields_.unknown},
        {"padding_token_id", fields_.padding}};
    for (const auto& [name, id] : ids)
      if (id) keys_.add_integer(fmt::format("tokenizer.ggml.{}", name), GgufType::kUInt32, *id);
    keys_.add_bool("tokenizer.ggml.add_bos_token", fields_.adds_bos);
    keys_.add_bool("tokenizer.ggml.add_eos_token", fields_.adds_eos);
    if (!fields_.chat_template.empty())
      keys_.add_text("tokenizer.chat_template", fields_.chat_template);
  }

  JsonNode root_, model_;
  const GgufTokenizerFields& fields_;
  GgufKeys& keys_;
  std::vector<JsonNode> stages_;
  std::vector<std::string> tokens_;
  std::vector<GgufTokenType> types_;
};

}  // namespace

void add_gguf_tokenizer(std::string_view tokenizer_json, const GgufTokenizerFields& fields,
                        GgufKeys& keys) {
  const Json document = parse_document(tokenizer_json, "tokenizer.json");
  Writer(JsonNode(document, "[tokenizer] tokenizer.json"), fields, keys).write();
  keys.add_text("tokenizer.huggingface.json", tokenizer_json);
}

void add_no_gguf_tokenizer(GgufKeys& keys) { keys.add_text("tokenizer.ggml.model", "none"); }

}  // namespace anabatic::io
