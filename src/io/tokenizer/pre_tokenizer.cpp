// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/pre_tokenizer.h"

namespace anabatic::io::tokenizer {

void NextStage::operator()(Piece piece) const {
  if (piece.text.empty()) return;
  if (stage_ == stages_.stages_.size()) return take_word_(piece.text);
  const NextStage next(stages_, stage_ + 1, scratch_, take_word_);
  stages_.stages_[stage_]->cut(piece, scratch_.regex, scratch_.buffers[stage_], next);
}

void PreTokenizers::cut(Piece piece, CutScratch& scratch,
                        const NextStage::TakeWord& take_word) const {
  if (scratch.buffers.size() < stages_.size()) scratch.buffers.resize(stages_.size());
  NextStage(*this, 0, scratch, take_word)(piece);
}

void Splitter::add(std::size_t begin, std::size_t end, bool is_match) {
  bool joins_group = false;
  switch (behavior_) {
    case SplitBehavior::kIsolated:
      return give(begin, end);
    case SplitBehavior::kRemoved:
      if (!is_match) give(begin, end);
      return;
    case SplitBehavior::kMergedWithPrevious:
      joins_group = is_match && !was_match_;
      break;
    case SplitBehavior::kMergedWithNext:
      joins_group = !is_match && was_match_;
      break;
    case SplitBehavior::kContiguous:
      joins_group = is_match == was_match_;
      break;
  }
  was_match_ = is_match;
  if (has_group_ && joins_group) {
    end_ = end;
    return;
  }
  finish();
  has_group_ = true;
  begin_ = begin;
  end_ = end;
}

void Splitter::finish() {
  if (has_group_) give(begin_, end_);
  has_group_ = false;
}

}  // namespace anabatic::io::tokenizer
