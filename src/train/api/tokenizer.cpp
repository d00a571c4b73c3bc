// SPDX-License-Identifier: Apache-2.0
#include "anabatic/tokenizer.h"

#include "io/tokenizer/tokenizer.h"
#include "train/run_config.h"
#include "train/tokenize.h"

namespace anabatic {

struct Tokenizer::Impl {
  io::Tokenizer tokenizer;
};

Tokenizer::Tokenizer(const std::string& path)
    : impl_(std::make_unique<Impl>(Impl{io::Tokenizer::load(path)})) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return impl_->tokenizer.encode(text, add_special_tokens);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  return impl_->tokenizer.decode(ids, skip_special_tokens);
}

std::int64_t Tokenizer::vocabulary() const { return impl_->tokenizer.vocabulary_size(); }

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->tokenizer.token_to_id(token);
}

std::string Tokenizer::id_to_token(std::int32_t id) const {
  return impl_->tokenizer.id_to_token(id);
}

TokenizeSummary tokenize_files(const std::vector<std::string>& files,
                               const std::string& output_prefix, const Settings& settings) {
  const io::TokenizeCounts counts =
      train::tokenize_files({files.begin(), files.end()}, output_prefix,
                            train::load_run_config("", {settings.begin(), settings.end()}));
  return {counts.documents, counts.tokens, counts.text_bytes};
}

}  // namespace anabatic
