// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "io/tokenizer/tokenizer.h"

namespace anabatic::io {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// No character needs more tokens than its four bytes; longer waiting means ill-formed output.
constexpr std::size_t kMaxWaitingIds = 8;

}  // namespace

TokenStream::TokenStream(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

// What a token adds can depend on the tokens before it (leading spaces vanish, bytes join), so the
// ids of the last emission stay as context and their text is cut off.
std::string TokenStream::push(std::int32_t id) {
  ids_.push_back(id);
  std::string text = tokenizer_->decode(ids_, skip_special_tokens_);
  const bool is_waiting =
      text.ends_with(kReplacement) && ids_.size() - num_emitted_ids_ <= kMaxWaitingIds;
  if (is_waiting || text.size() <= emitted_.size()) return "";
  return emit(std::move(text));
}

std::string TokenStream::finish() { return emit(tokenizer_->decode(ids_, skip_special_tokens_)); }

std::string TokenStream::emit(std::string text) {
  const auto [in_text, in_emitted] =
      std::mismatch(text.begin(), text.end(), emitted_.begin(), emitted_.end());
  std::string fresh(in_text, text.end());
  // A decoder may strip spaces from its first tokens. Where that leaves nothing, it would strip the
  // next token too, so ids from before stay in front of them.
  const std::vector<std::int32_t> rest(ids_.begin() + static_cast<std::ptrdiff_t>(num_emitted_ids_),
                                       ids_.end());
  std::string decoded = tokenizer_->decode(rest, skip_special_tokens_);
  if (decoded.empty()) {
    emitted_ = std::move(text);
  } else {
    ids_ = rest;
    emitted_ = std::move(decoded);
  }
  num_emitted_ids_ = ids_.size();
  return fresh;
}

}  // namespace anabatic::io
