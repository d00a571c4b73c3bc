// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "io/proto/sentencepiece.pb.h"
#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/regex.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

using Piece = proto::SentencePieceModel::Piece;

// A merge is looked for at every place of a piece.
constexpr std::size_t kLongestPiece_bytes = 1024;

struct MergeOf {
  float score;
  std::size_t left_length, right_length;  // characters
  std::string_view left, right;
};

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Json replace(Json pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0)
      pattern += '\\';
    pattern += c;
  }
  return pattern;
}

class SentencePieceConverter {
 public:
  SentencePieceConverter(std::string_view bytes, std::string_view name)
      : place_(fmt::format("[tokenizer] {}", name)) {
    const bool is_read =
        bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()) &&
        model_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    ANABATIC_REQUIRE(is_read && model_.pieces_size() > 0,
                     "{}: expected a SentencePiece model with pieces, got {} bytes that are none",
                     place_, bytes.size());
    ANABATIC_REQUIRE(model_.pieces_size() <= kMaxId, "{}: expected at most {} pieces, got {}",
                     place_, kMaxId, model_.pieces_size());
    check_options();
    for (int id = 0; id < model_.pieces_size(); ++id) add_piece(id);
    ANABATIC_REQUIRE(unk_id_ >= 0, "{}: expected one unknown piece, got none", place_);
    ANABATIC_REQUIRE(!trainer().byte_fallback() || num_bytes_ == 256,
                     "{}: byte_fallback: expected 256 byte pieces, got {}", place_, num_bytes_);
  }

  Json convert(bool adds_bos) const {
    Json document = empty_document();
    document["normalizer"] = normalizer();
    document["model"] = is_bpe() ? bpe() : unigram();
    document["added_tokens"] = added_tokens();
    document["decoder"] = decoder();
    if (!is_bpe() && keeps_words_apart()) document["pre_tokenizer"] = split_words();
    const auto bos = ids_.find(trainer().bos_piece());
    if (adds_bos && bos != ids_.end() && type(bos->second) == Piece::CONTROL)
      document["post_processor"] = begin_with(bos->first, bos->second);
    return document;
  }

 private:
  const proto::SentencePieceTrainer& trainer() const { return model_.trainer_spec(); }
  const proto::SentencePieceNormalizer& rules() const { return model_.normalizer_spec(); }
  bool is_bpe() const { return trainer().model_type() == proto::SentencePieceTrainer::BPE; }
  std::string_view space() const { return rules().escape_whitespaces() ? kSpaceMark : " "; }
  const std::string& text(int id) const { return model_.pieces(id).piece(); }
  Piece::Type type(int id) const { return model_.pieces(id).type(); }
  // A BPE never merges user-defined pieces. A Unigram model weighs them like the others.
  bool is_added(int id) const { return is_bpe() && type(id) == Piece::USER_DEFINED; }

  void check_options() const {
    const auto refuse_if = [&](bool is_so, std::string_view what) {
      if (is_so) throw Unsupported(fmt::format("{}: {} is not supported", place_, what));
    };
    const auto type = trainer().model_type();
    refuse_if(type == proto::SentencePieceTrainer::WORD, "trainer_spec.model_type WORD");
    refuse_if(type == proto::SentencePieceTrainer::CHAR, "trainer_spec.model_type CHAR");
    refuse_if(trainer().treat_whitespace_as_suffix(), "trainer_spec.treat_whitespace_as_suffix");
    refuse_if(!model_.denormalizer_spec().precompiled_charsmap().empty(),
              "denormalizer_spec.precompiled_charsmap");
  }

  void add_piece(int id) {
    const std::string& piece = text(id);
    const std::string place = fmt::format("{}: pieces[{}]", place_, id);
    ANABATIC_REQUIRE(!find_invalid_utf8(piece), "{}: expected UTF-8, got {} bytes that are not",
                     place, piece.size());
    ANABATIC_REQUIRE(!piece.empty() && piece.size() <= kLongestPiece_bytes,
                     "{}: expected a text of 1 to {} bytes, got {}", place, kLongestPiece_bytes,
                     piece.size());
    ANABATIC_REQUIRE(std::isfinite(model_.pieces(id).score()),
                     "{}: expected a finite score, got {}", place, model_.pieces(id).score());
    const auto [seen, is_new] = ids_.emplace(piece, id);
    ANABATIC_REQUIRE(is_new, "{}: expected distinct pieces, got `{}` as piece {} too", place, piece,
                     seen->second);
    if (type(id) == Piece::UNUSED)
      throw Unsupported(fmt::format("{}: a piece of type UNUSED is not supported", place));
    if (type(id) == Piece::UNKNOWN) {
      ANABATIC_REQUIRE(unk_id_ < 0, "{}: expected one unknown piece, got piece {} too", place,
                       unk_id_);
      unk_id_ = id;
    }
    num_bytes_ += type(id) == Piece::BYTE;
  }

  // What is done to a text before the prefix. SentencePiece drops spaces at both ends and all but
  // the last of a run. At the end it also drops spaces that are escaped already.
  Json::array_t cleaning() const {
    Json::array_t steps;
    if (!rules().precompiled_charsmap().empty())
      steps.push_back({{"type", "Precompiled"},
                       {"precompiled_charsmap", encode_base64(rules().precompiled_charsmap())}});
    if (rules().remove_extra_whitespaces())
      steps.push_back(replace({{"Regex", extra_spaces_pattern(space())}}, ""));
    if (rules().escape_whitespaces()) steps.push_back(replace({{"String", " "}}, kSpaceMark));
    return steps;
  }

  Json normalizer() const {
    Json::array_t steps = cleaning();
    if (rules().add_dummy_prefix()) {
      const std::string own = user_defined_pattern();
      // A normalised added token must stay without the prefix, so a text that is one gets none.
      if (own.empty())
        steps.push_back({{"type", "Prepend"}, {"prepend", space()}});
      else
        steps.push_back(replace({{"Regex", fmt::format("\\A(?!\\z)(?!(?:{})\\z)", own)}}, space()));
    }
    if (steps.empty()) return nullptr;
    return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
  }

  // The user-defined pieces as normalisation leaves them.
  std::string user_defined_pattern() const {
    const Json cleaner{{"type", "Sequence"}, {"normalizers", cleaning()}};
    const Normalizers steps = load_normalizers(JsonNode(cleaner, place_, "normalizer"));
    RegexScratch scratch;
    std::string pattern;
    for (int id = 0; id < model_.pieces_size(); ++id) {
      if (!is_added(id)) continue;
      std::string content = text(id);
      for (const auto& step : steps) step->apply(content, false, scratch);
      pattern += (pattern.empty() ? "" : "|") + escaped(content);
    }
    return pattern;
  }

  Json added_tokens() const {
    Json tokens = Json::array();
    for (int id = 0; id < model_.pieces_size(); ++id) {
      const bool is_special = type(id) == Piece::CONTROL || type(id) == Piece::UNKNOWN;
      if (is_special || is_added(id)) tokens.push_back(added_token(id, text(id), is_special));
    }
    return tokens;
  }

  Json unigram() const {
    Json vocab = Json::array();
    for (const Piece& piece : model_.pieces())
      vocab.push_back(Json::array({piece.piece(), score_of(piece)}));
    return {{"type", "Unigram"},
            {"unk_id", unk_id_},
            {"vocab", std::move(vocab)},
            {"byte_fallback", trainer().byte_fallback()}};
  }

  // SentencePiece (0.2.3) takes user-defined pieces nearly always: their score grows with the
  // bytes.
  static double score_of(const Piece& piece) {
    if (piece.type() != Piece::USER_DEFINED) return static_cast<double>(piece.score());
    return 0.1 * static_cast<double>(piece.piece().size()) - 0.1;
  }

  // Whether no token reaches over the start of a word, so that words can be tokenised one by one.
  bool keeps_words_apart() const {
    const auto found = ids_.find(std::string(space()));
    if (found == ids_.end() || type(found->second) != Piece::NORMAL) return false;
    return std::all_of(model_.pieces().begin(), model_.pieces().end(), [&](const Piece& piece) {
      const std::string_view text = piece.piece();
      std::size_t at = 0;
      while (text.substr(at).starts_with(space())) at += space().size();
      return text.find(space(), at) == std::string_view::npos;
    });
  }

  Json split_words() const {
    return {{"type", "Split"},
            {"pattern", {{"Regex", words_pattern(space())}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  }

  Json bpe() const {
    Json vocab = Json::object();
    for (const auto& [piece, id] : ids_) vocab[piece] = static_cast<std::uint32_t>(id);
    Json merges = Json::array();
    for (const MergeOf& merge : find_merges())
      merges.push_back(Json::array({merge.left, merge.right}));
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", text(unk_id_)},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", trainer().byte_fallback()},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}};
  }

  // SentencePiece joins the neighbours whose union has the best score, the leftmost of equals. A
  // union of two pairs goes to the pair with the longer left part, as `transformers` ranks them.
  std::vector<MergeOf> find_merges() const {
    std::vector<MergeOf> merges;
    for (int id = 0; id < model_.pieces_size(); ++id) {
      if (type(id) != Piece::NORMAL) continue;
      const std::string_view piece = text(id);
      const float score = model_.pieces(id).score();
      for (std::size_t at = utf8_length(static_cast<unsigned char>(piece[0])); at < piece.size();
           at += utf8_length(static_cast<unsigned char>(piece[at]))) {
        const std::string_view left = piece.substr(0, at), right = piece.substr(at);
        if (is_normal(left) && is_normal(right))
          merges.push_back({score, count_characters(left), count_characters(right), left, right});
      }
    }
    std::stable_sort(merges.begin(), merges.end(), [](const MergeOf& a, const MergeOf& b) {
      if (a.score != b.score) return a.score > b.score;
      if (a.left_length != b.left_length) return a.left_length > b.left_length;
      return a.right_length > b.right_length;
    });
    return merges;
  }

  bool is_normal(std::string_view piece) const {
    const auto found = ids_.find(std::string(piece));
    return found != ids_.end() && type(found->second) == Piece::NORMAL;
  }

  Json decoder() const {
    Json::array_t steps;
    if (rules().escape_whitespaces()) steps.push_back(replace({{"String", kSpaceMark}}, " "));
    steps.push_back({{"type", "ByteFallback"}});
    steps.push_back({{"type", "Fuse"}});
    if (rules().add_dummy_prefix())
      steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
  }

  std::string place_;
  proto::SentencePieceModel model_;
  std::unordered_map<std::string, int> ids_;
  int unk_id_ = -1;
  int num_bytes_ = 0;
};

}  // namespace

Json convert_sentencepiece(std::string_view bytes, std::string_view name, bool adds_bos) {
  return SentencePieceConverter(bytes, name).convert(adds_bos);
}

}  // namespace anabatic::io::tokenizer
