// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

// GPT-2's pattern, which ByteLevel uses by itself.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(Regex regex, SplitBehavior behavior, bool is_inverted)
      : regex_(std::move(regex)), behavior_(behavior), is_inverted_(is_inverted) {}

  void cut(Piece piece, RegexScratch& scratch, std::string&, const NextStage& next) const override {
    Splitter splitter(piece, behavior_, next);
    std::size_t done = 0;
    MatchCursor matches(regex_, piece.text, scratch);
    for (Match match; matches.next(match);) {
      if (done != match.begin) splitter.add(done, match.begin, is_inverted_);
      splitter.add(match.begin, match.end, !is_inverted_);
      done = match.end;
    }
    if (done != piece.text.size()) splitter.add(done, piece.text.size(), is_inverted_);
    splitter.finish();
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

class LiteralSplit final : public PreTokenizer {
 public:
  LiteralSplit(std::string literal, SplitBehavior behavior, bool is_inverted)
      : literal_(std::move(literal)), behavior_(behavior), is_inverted_(is_inverted) {}

  void cut(Piece piece, RegexScratch&, std::string&, const NextStage& next) const override {
    Splitter splitter(piece, behavior_, next);
    std::size_t done = 0;
    for (std::size_t at = piece.text.find(literal_); at != std::string_view::npos;
         at = piece.text.find(literal_, done)) {
      if (done != at) splitter.add(done, at, is_inverted_);
      done = at + literal_.size();
      splitter.add(at, done, !is_inverted_);
    }
    if (done != piece.text.size()) splitter.add(done, piece.text.size(), is_inverted_);
    splitter.finish();
  }

 private:
  std::string literal_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

// As the pattern of words (regex.h) cuts.
class WordSplit final : public PreTokenizer {
 public:
  WordSplit(std::string_view mark, SplitBehavior behavior, bool is_inverted)
      : mark_(mark), behavior_(behavior), is_inverted_(is_inverted) {}

  void cut(Piece piece, RegexScratch&, std::string&, const NextStage& next) const override {
    Splitter splitter(piece, behavior_, next);
    const std::string_view text = piece.text;
    std::size_t at = std::min(text.find(mark_), text.size());
    if (at > 0) splitter.add(0, at, is_inverted_);
    while (at < text.size()) {
      std::size_t end = at + mark_.size();
      while (text.substr(end).starts_with(mark_)) end += mark_.size();
      end = std::min(text.find(mark_, end), text.size());
      splitter.add(at, end, !is_inverted_);
      at = end;
    }
    splitter.finish();
  }

 private:
  std::string_view mark_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

// Cuts at every character of a class.
class CharacterSplit final : public PreTokenizer {
 public:
  CharacterSplit(bool (*is_delimiter)(char32_t), SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}

  void cut(Piece piece, RegexScratch&, std::string&, const NextStage& next) const override {
    Splitter splitter(piece, behavior_, next);
    std::size_t done = 0, length = 0;
    for (std::size_t at = 0; at < piece.text.size(); at += length) {
      if (!is_delimiter_(decode_utf8(piece.text, at, length))) continue;
      if (done != at) splitter.add(done, at, false);
      done = at + length;
      splitter.add(at, done, true);
    }
    if (done != piece.text.size()) splitter.add(done, piece.text.size(), false);
    splitter.finish();
  }

 private:
  bool (*is_delimiter_)(char32_t);
  SplitBehavior behavior_;
};

// Only the prefix. A RegexSplit stage after it does the cutting, and a stage after that the
// mapping, unless the model takes raw bytes.
class PrefixSpace final : public PreTokenizer {
 public:
  void cut(Piece piece, RegexScratch&, std::string& buffer, const NextStage& next) const override {
    if (piece.text[0] != ' ' && piece.start != Start::kContinuation) {
      buffer.assign(1, ' ');
      buffer += piece.text;
      piece.text = buffer;
    }
    next(piece);
  }
};

class ByteSymbols final : public PreTokenizer {
 public:
  void cut(Piece piece, RegexScratch&, std::string& buffer, const NextStage& next) const override {
    buffer.clear();
    append_byte_symbols(piece.text, buffer);
    next({buffer, piece.start});
  }
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool splits)
      : replacement_(std::move(replacement)), scheme_(scheme), splits_(splits) {}

  void cut(Piece piece, RegexScratch&, std::string& buffer, const NextStage& next) const override {
    const bool starts_with_space = piece.text[0] == ' ' || piece.text.starts_with(replacement_);
    buffer.clear();
    if (!starts_with_space && piece.start != Start::kContinuation &&
        (scheme_ == PrependScheme::kAlways ||
         (scheme_ == PrependScheme::kFirst && piece.start == Start::kInput)))
      buffer += replacement_;
    std::size_t done = 0;
    for (std::size_t at = piece.text.find(' '); at != std::string_view::npos;
         at = piece.text.find(' ', done)) {
      buffer += piece.text.substr(done, at - done);
      buffer += replacement_;
      done = at + 1;
    }
    buffer += piece.text.substr(done);
    if (!splits_) return next({buffer, piece.start});
    const std::string_view text = buffer;
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = text.find(replacement_, begin + 1);
      if (end == std::string_view::npos) end = text.size();
      next({text.substr(begin, end - begin), first_part(piece, begin)});
      begin = end;
    }
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool splits_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}
  void cut(Piece piece, RegexScratch&, std::string&, const NextStage& next) const override {
    std::size_t at = 0;
    while (at < piece.text.size()) {
      const std::size_t begin = at;
      for (std::int64_t i = 0; i < length_ && at < piece.text.size(); ++i)
        at += utf8_length(static_cast<unsigned char>(piece.text[at]));
      next({piece.text.substr(begin, at - begin), first_part(piece, begin)});
    }
  }

 private:
  std::int64_t length_;
};

using Stages = std::vector<std::unique_ptr<const PreTokenizer>>;

std::unique_ptr<const PreTokenizer> load_split(const JsonNode& node) {
  const SplitBehavior behavior = read_behavior(node.at("behavior"));
  const bool is_inverted = node.at("invert").as_bool();
  const JsonNode pattern = node.at("pattern");
  if (const auto literal = pattern.find("String")) {
    if (literal->as_string().empty()) literal->unsupported("an empty pattern");
    return std::make_unique<LiteralSplit>(literal->as_string(), behavior, is_inverted);
  }
  const JsonNode regex = pattern.at("Regex");
  if (const auto mark = mark_of_words(regex.as_string()))
    return std::make_unique<WordSplit>(*mark, behavior, is_inverted);
  return std::make_unique<RegexSplit>(Regex(regex.as_string(), regex.place()), behavior,
                                      is_inverted);
}

std::unique_ptr<const PreTokenizer> load_metaspace(const JsonNode& node) {
  PrependScheme scheme = PrependScheme::kAlways;
  if (const auto field = node.find("prepend_scheme")) {
    const std::string name = field->as_string();
    if (name == "first")
      scheme = PrependScheme::kFirst;
    else if (name == "never")
      scheme = PrependScheme::kNever;
    else if (name != "always")
      field->refuse("always, first or never");
    // add_prefix_space is the older spelling of the same.
    if (!node.bool_or("add_prefix_space", true) && scheme != PrependScheme::kNever)
      field->refuse("never, as add_prefix_space is false");
  } else if (!node.bool_or("add_prefix_space", true)) {
    scheme = PrependScheme::kNever;
  }
  return std::make_unique<Metaspace>(character_of(node.at("replacement")), scheme,
                                     node.bool_or("split", true));
}

// Sets `ends_in_symbols` to whether the last stage maps bytes to symbols.
void append_stages(const JsonNode& node, int depth, Stages& stages, bool& ends_in_symbols) {
  if (depth > kMaxDepth) node.unsupported("a Sequence nested this deep");
  const std::string type = type_of(node);
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("pretokenizers").items())
      append_stages(item, depth + 1, stages, ends_in_symbols);
    return;
  }
  ends_in_symbols = type == "ByteLevel";
  const auto add = [&](auto stage) { stages.push_back(std::move(stage)); };
  if (type == "ByteLevel") {
    if (node.at("add_prefix_space").as_bool()) add(std::make_unique<PrefixSpace>());
    if (node.bool_or("use_regex", true)) {
      add(std::make_unique<RegexSplit>(Regex(kByteLevelPattern, node.place()),
                                       SplitBehavior::kIsolated, false));
    }
    add(std::make_unique<ByteSymbols>());
  } else if (type == "Split") {
    add(load_split(node));
  } else if (type == "Digits") {
    add(std::make_unique<CharacterSplit>(is_numeric, node.at("individual_digits").as_bool()
                                                         ? SplitBehavior::kIsolated
                                                         : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    add(std::make_unique<CharacterSplit>(
        is_punctuation, behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated));
  } else if (type == "Whitespace") {
    // The word characters of Rust's regex crate hold the two joiners as well.
    add(std::make_unique<RegexSplit>(
        Regex(R"([[:word:]\x{200c}\x{200d}]+|[^[:word:]\x{200c}\x{200d}\s]+)", node.place()),
        SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    add(std::make_unique<CharacterSplit>(is_whitespace, SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    add(std::make_unique<CharacterSplit>(is_whitespace, SplitBehavior::kRemoved));
    add(std::make_unique<CharacterSplit>(is_punctuation, SplitBehavior::kIsolated));
  } else if (type == "CharDelimiterSplit" || type == "Delimiter") {
    add(std::make_unique<LiteralSplit>(character_of(node.at("delimiter")), SplitBehavior::kRemoved,
                                       false));
  } else if (type == "Metaspace") {
    add(load_metaspace(node));
  } else if (type == "FixedLength") {
    const auto length = node.find("length");
    const std::int64_t count = length ? count_of(*length) : 5;
    if (count == 0) node.at("length").refuse("a length of at least 1");
    add(std::make_unique<FixedLength>(count));
  } else {
    node.unsupported(fmt::format("the pre-tokenizer `{}`", type));
  }
}

}  // namespace

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string name = node.as_string();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.refuse("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

PreTokenizers::PreTokenizers(const JsonNode& node) {
  append_stages(node, 0, stages_, gives_raw_bytes_);
  // The model maps raw bytes only for words that its cache does not know.
  if (gives_raw_bytes_) stages_.pop_back();
}

}  // namespace anabatic::io::tokenizer
