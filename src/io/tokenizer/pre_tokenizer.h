// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words that the model sees; merges never cross words.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {

// Where a piece starts: with the whole input, in the middle of running text that was cut into
// chunks (so it gets no prefix), or elsewhere.
enum class Start { kInput, kContinuation, kInside };

// A piece of text on its way to becoming words. The text lives until the callee returns.
struct Piece {
  std::string_view text;
  Start start = Start::kInside;
};

class PreTokenizers;

// Buffers for cutting text; one for each thread.
struct CutScratch {
  RegexScratch regex;
  std::vector<std::string> buffers;  // changed text, one for each stage
};

// Passes pieces from one stage to the next, and words from the last stage to `take_word`.
class NextStage {
 public:
  using TakeWord = std::function<void(std::string_view)>;
  NextStage(const PreTokenizers& stages, std::size_t stage, CutScratch& scratch,
            const TakeWord& take_word)
      : stages_(stages), stage_(stage), scratch_(scratch), take_word_(take_word) {}

  void operator()(Piece piece) const;  // empty pieces vanish

 private:
  const PreTokenizers& stages_;
  std::size_t stage_;
  CutScratch& scratch_;
  const TakeWord& take_word_;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Hands the parts of `piece` (not empty) to `next` in order; `buffer` is this stage's alone.
  virtual void cut(Piece piece, RegexScratch& scratch, std::string& buffer,
                   const NextStage& next) const = 0;
};

// Stages in order; Sequences are flattened.
class PreTokenizers {
 public:
  PreTokenizers() = default;
  explicit PreTokenizers(const JsonNode& node);

  void cut(Piece piece, CutScratch& scratch, const NextStage::TakeWord& take_word) const;

  // The last stage is ByteLevel: words are then raw bytes, and the model maps them to symbols.
  bool gives_raw_bytes() const { return gives_raw_bytes_; }

 private:
  friend class NextStage;
  std::vector<std::unique_ptr<const PreTokenizer>> stages_;
  bool gives_raw_bytes_ = false;
};

// The start of a part that a stage cut off at `begin`. What was cut is no longer running text.
inline Start first_part(const Piece& piece, std::size_t begin) {
  return begin == 0 && piece.start == Start::kInput ? Start::kInput : Start::kInside;
}

// How the matches of a delimiter and the text between them become pieces; names as in the file.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
SplitBehavior read_behavior(const JsonNode& node);

// Receives neighbouring parts of `piece` from left to right and hands on what the behavior says.
class Splitter {
 public:
  Splitter(Piece piece, SplitBehavior behavior, const NextStage& next)
      : piece_(piece), behavior_(behavior), next_(next) {}
  void add(std::size_t begin, std::size_t end, bool is_match);
  void finish();

 private:
  void give(std::size_t begin, std::size_t end) const {
    next_({piece_.text.substr(begin, end - begin), first_part(piece_, begin)});
  }

  Piece piece_;
  SplitBehavior behavior_;
  const NextStage& next_;
  bool has_group_ = false;
  bool was_match_ = false;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace anabatic::io::tokenizer
