// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "io/align_text.h"
#include "io/gguf.h"
#include "io/tokenizer/added_vocabulary.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/known_fields.h"
#include "io/tokenizer/model.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/post_processor.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io {

namespace {

using tokenizer::AddedVocabulary;
using tokenizer::CutScratch;
using tokenizer::Decoders;
using tokenizer::load_decoders;
using tokenizer::load_model;
using tokenizer::load_normalizers;
using tokenizer::load_post_processor;
using tokenizer::Match;
using tokenizer::Model;
using tokenizer::NextStage;
using tokenizer::Normalizers;
using tokenizer::parse_document;
using tokenizer::PostProcessor;
using tokenizer::PreTokenizers;
using tokenizer::read_document;
using tokenizer::Start;
using tokenizer::TextPart;
using tokenizer::warn_of_unknown_fields;
using tokenizer::WordScratch;

constexpr std::size_t kMaxKeptSymbols = 1 << 22;

struct EncodeScratch {
  CutScratch cut;
  WordScratch words;
  std::vector<TextPart> raw_parts;
  std::vector<TextPart> parts;
  std::string normalized;
  std::string covered;
  std::vector<std::uint32_t> places;
};

// The tokens that a text becomes, where they begin if that is asked for, and what may be matched.
struct Encoding {
  std::vector<std::int32_t>& ids;
  std::vector<std::uint32_t>* begins = nullptr;
  std::span<const AddedTokenRange> ranges{};

  bool allows(std::size_t begin, std::size_t end, bool is_special) const {
    if (ranges.empty()) return true;
    auto range = std::upper_bound(
        ranges.begin(), ranges.end(), begin,
        [](std::size_t at, const AddedTokenRange& other) { return at < other.end; });
    for (; range != ranges.end(); ++range) {
      if (range->match == AddedTokenMatch::kNone) return false;
      if (range->match == AddedTokenMatch::kNotSpecial && is_special) return false;
      if (range->end >= end) return true;
    }
    return false;
  }
};

Normalizers normalizers_of(const JsonNode& root) {
  const auto node = root.find("normalizer");
  return node ? load_normalizers(*node) : Normalizers();
}

}  // namespace

struct Tokenizer::Impl {
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<Model> model;
  AddedVocabulary added;
  PostProcessor post_processor;
  bool has_decoder = false;
  Decoders decoders;

  // Caches and buffers that no call uses now. A call takes one and gives it back, so a thread that
  // encodes document after document keeps finding warm caches.
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<EncodeScratch>> idle;

  // By id; made when it is first asked for.
  mutable std::once_flag covered_once;
  mutable std::vector<std::string> covered_texts;

  explicit Impl(const JsonNode& root)
      : normalizers(normalizers_of(root)),
        model(load_model(root.at("model"))),
        added(
            root.find("added_tokens"), model->num_tokens(),
            [this](const std::string& token) { return model->id_of(token); }, normalizers) {
    if (const auto version = root.find("version"); version && version->as_string() != "1.0")
      version->unsupported(fmt::format("version {}", version->as_string()));
    for (const char* key : {"truncation", "padding"}) {
      if (const auto node = root.find(key)) log_warning("{}: is not applied", node->place());
    }
    if (const auto node = root.find("pre_tokenizer")) pre_tokenizers = PreTokenizers(*node);
    if (pre_tokenizers.gives_raw_bytes()) model->take_raw_bytes();
    if (const auto node = root.find("post_processor")) {
      post_processor = load_post_processor(*node);
      for (const auto* ids : {&post_processor.before, &post_processor.after})
        for (const std::int32_t id : *ids)
          if (!token_text(id)) node->refuse(fmt::format("ids of tokens, not {}", id));
    }
    if (const auto node = root.find("decoder")) {
      decoders = load_decoders(*node);
      has_decoder = true;
    }
    warn_of_unknown_fields(root);
  }

  std::unique_ptr<EncodeScratch> take_scratch() const {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<EncodeScratch>();
    std::unique_ptr<EncodeScratch> scratch = std::move(idle.back());
    idle.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) const {
    // Buffers of a huge text are not kept.
    if (scratch->words.symbols.capacity() > kMaxKeptSymbols) return;
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(scratch));
  }

  // `start` is that of `text`: kInput or kContinuation.
  void encode_text(std::string_view text, Start start, EncodeScratch& scratch,
                   const Encoding& encoding) const {
    std::vector<std::int32_t>& ids = encoding.ids;
    const NextStage::TakeWord take_word = [&](std::string_view word) {
      model->encode(word, scratch.words, ids);
    };
    added.split_raw(text, scratch.cut.regex, scratch.raw_parts,
                    [&](const Match& match, bool special) {
                      return encoding.allows(match.begin, match.end, special);
                    });
    for (const TextPart& raw : scratch.raw_parts) {
      const auto raw_begin = static_cast<std::size_t>(raw.text.data() - text.data());
      if (raw.id >= 0) {
        ids.push_back(raw.id);
        if (encoding.begins) encoding.begins->push_back(static_cast<std::uint32_t>(raw_begin));
        continue;
      }
      const std::size_t first = ids.size();
      const bool is_first = raw.text.data() == text.data();
      const bool is_continuation = is_first && start == Start::kContinuation;
      bool keeps_start = true;
      std::string_view normalized = raw.text;
      if (!normalizers.empty()) {
        scratch.normalized = raw.text;
        for (const auto& normalizer : normalizers)
          keeps_start &= normalizer->apply(scratch.normalized, is_continuation, scratch.cut.regex);
        normalized = scratch.normalized;
        if (!encoding.ranges.empty()) align_text(normalized, raw.text, scratch.places);
      }
      const auto raw_place = [&](std::size_t at) {
        if (normalizers.empty()) return raw_begin + at;
        return raw_begin + (at < normalized.size() ? scratch.places[at] : raw.text.size());
      };
      added.split_normalized(
          normalized, scratch.cut.regex, scratch.parts, [&](const Match& match, bool special) {
            return encoding.ranges.empty() ||
                   encoding.allows(raw_place(match.begin), raw_place(match.end), special);
          });
      for (const TextPart& part : scratch.parts) {
        if (part.id >= 0) {
          ids.push_back(part.id);
          continue;
        }
        const bool starts = is_first && keeps_start && part.text.data() == normalized.data();
        pre_tokenizers.cut({part.text, starts ? start : Start::kInside}, scratch.cut, take_word);
      }
      if (encoding.begins) append_begins(raw.text, raw_begin, first, scratch, encoding);
    }
  }

  // Where the ids from `first` on begin, which `text` became.
  void append_begins(std::string_view text, std::size_t offset, std::size_t first,
                     EncodeScratch& scratch, const Encoding& encoding) const {
    const std::span<const std::int32_t> ids = std::span(encoding.ids).subspan(first);
    scratch.covered.clear();
    for (const std::int32_t id : ids) scratch.covered += covered_text(id);
    align_text(scratch.covered, text, scratch.places);
    std::size_t at = 0;
    for (const std::int32_t id : ids) {
      const std::size_t place = at < scratch.places.size() ? scratch.places[at] : text.size();
      encoding.begins->push_back(static_cast<std::uint32_t>(offset + place));
      at += covered_text(id).size();
    }
  }

  // The bytes of text that a token stands for.
  const std::string& covered_text(std::int32_t id) const {
    std::call_once(covered_once, [this] {
      covered_texts.resize(static_cast<std::size_t>(std::max(model->end_id(), added.end_id())));
      for (std::size_t i = 0; i < covered_texts.size(); ++i)
        covered_texts[i] = make_covered_text(static_cast<std::int32_t>(i));
    });
    return covered_texts[static_cast<std::size_t>(id)];
  }
  std::string make_covered_text(std::int32_t id) const {
    if (const std::string* text = added.text_of(id)) return *text;
    const std::string* token = model->token(id);
    if (!token) return "";
    unsigned byte = 0;
    if (token->size() == 6 && std::sscanf(token->c_str(), "<0x%2X>", &byte) == 1)
      return std::string(1, static_cast<char>(byte));
    std::string covered;
    for (std::size_t at = 0, length = 0; at < token->size(); at += length) {
      const char32_t character = tokenizer::decode_utf8(*token, at, length);
      const auto symbol = tokenizer::symbol_byte(character);
      if (pre_tokenizers.gives_raw_bytes() && symbol)
        covered += static_cast<char>(*symbol);
      else if (character == U'\u2581')
        covered += ' ';
      else
        covered.append(*token, at, length);
    }
    return covered;
  }

  void encode_checked(std::string_view text, Start start, const Encoding& encoding) const {
    if (const auto bad = find_invalid_utf8(text)) {
      throw InvalidArgument(fmt::format(
          "[tokenizer] expected UTF-8, got the byte 0x{:02X} at offset {} of a text of {} bytes",
          static_cast<unsigned char>(text[*bad]), *bad, text.size()));
    }
    std::unique_ptr<EncodeScratch> scratch = take_scratch();
    encode_text(text, start, *scratch, encoding);
    give_back(std::move(scratch));
  }

  const std::string* token_text(std::int32_t id) const {
    const std::string* text = added.text_of(id);
    return text ? text : model->token(id);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view json, std::string_view name) {
  return of_document(parse_document(json, name), name);
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder_or_file) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(folder_or_file, error);
  const bool is_model = is_folder || is_gguf(folder_or_file);
  const auto found = is_model ? find_tokenizer_file(folder_or_file) : folder_or_file;
  // A model without any is told of the first.
  const auto folder = is_folder ? folder_or_file : folder_or_file.parent_path();
  const auto file = found ? *found : folder / "tokenizer.json";
  return of_document(read_document(file), file.string());
}

Tokenizer Tokenizer::of_document(const nlohmann::json& document, std::string_view name) {
  return Tokenizer(std::make_unique<Impl>(JsonNode(document, fmt::format("[tokenizer] {}", name))));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<std::int32_t> ids;
  encode_append(text, add_special_tokens, ids);
  return ids;
}

void Tokenizer::encode_append(std::string_view text, bool add_special_tokens,
                              std::vector<std::int32_t>& ids) const {
  const PostProcessor& around = impl_->post_processor;
  if (add_special_tokens) ids.insert(ids.end(), around.before.begin(), around.before.end());
  impl_->encode_checked(text, Start::kInput, {ids});
  if (add_special_tokens) ids.insert(ids.end(), around.after.begin(), around.after.end());
}

EncodedText Tokenizer::encode_with_begins(std::string_view text,
                                          std::span<const AddedTokenRange> ranges) const {
  EncodedText encoded;
  impl_->encode_checked(text, Start::kInput, {encoded.ids, &encoded.begins, ranges});
  return encoded;
}

void Tokenizer::encode_continuation(std::string_view chunk, std::vector<std::int32_t>& ids) const {
  impl_->encode_checked(chunk, Start::kContinuation, {ids});
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const std::string* text = impl_->token_text(id);
    if (text && !(skip_special_tokens && impl_->added.is_special_text(*text)))
      tokens.push_back(*text);
  }
  std::string result;
  if (impl_->has_decoder) {
    std::unique_ptr<EncodeScratch> scratch = impl_->take_scratch();
    for (const auto& decoder : impl_->decoders) decoder->apply(tokens, scratch->cut.regex);
    impl_->give_back(std::move(scratch));
    for (const std::string& token : tokens) result += token;
  } else {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) result += ' ';
      result += tokens[i];
    }
  }
  return result;
}

std::int32_t Tokenizer::vocabulary_size() const {
  return std::max(impl_->model->end_id(), impl_->added.end_id());
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto id = impl_->added.id_of(token);
  return id ? id : impl_->model->id_of(token);
}

std::string Tokenizer::id_to_token(std::int32_t id) const {
  const std::string* text = impl_->token_text(id);
  return text ? *text : "";
}

bool Tokenizer::is_special(std::int32_t id) const {
  const std::string* text = impl_->token_text(id);
  return text && impl_->added.is_special_text(*text);
}

std::span<const std::int32_t> Tokenizer::special_prefix() const {
  return impl_->post_processor.before;
}
std::span<const std::int32_t> Tokenizer::special_suffix() const {
  return impl_->post_processor.after;
}

}  // namespace anabatic::io
