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
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(num_emitted_ids_));
  num_emitted_ids_ = ids_.size();
  emitted_ = tokenizer_->decode(ids_, skip_special_tokens_);
  return fresh;
}

}  // namespace anabatic::io
