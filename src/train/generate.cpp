// SPDX-License-Identifier: Apache-2.0
#include "train/generate.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "io/tokenizer/tokenizer.h"
#include "train/caches.h"
#include "train/config/precision_keys.h"
#include "train/objective/run_model.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

// Rows of a prompt that go through at once: enough to fill GEMM tiles, few enough that a short
// prompt wastes little.
constexpr std::int64_t kChunk = 64;
// As many rows of a chunk take no longer one by one.
constexpr std::int64_t kFewRows = 8;

// Tokens of a sequence, by the model and by the blocks that a mask has; 0: any number.
std::int64_t longest_of(const model::ModelConfig& config) {
  const std::int64_t longest = config.max_position_embeddings;
  if (!config.key_blocks || !config.key_blocks->mask) return longest;
  const std::int64_t places = config.key_blocks->mask->blocks * config.key_blocks->size;
  return longest > 0 ? std::min(longest, places) : places;
}

}  // namespace

Decoder::Decoder(ModelSession& session, std::int64_t capacity)
    : session_(session),
      capacity_(capacity),
      num_places_(std::max(capacity, kChunk)),
      vocabulary_(session.config().spec.vocab_size) {
  const auto bind = [&](const char* name, std::int64_t rows) {
    return session.bind({.name = name,
                         .build = {.num_tokens = rows,
                                   .with_loss = false,
                                   .with_logits = true,
                                   .cache_capacity = num_places_}});
  };
  chunk_ = bind("prefill", kChunk);
  single_ = bind("decode", 1);
}

Decoder::~Decoder() { drop_caches(session_, {&chunk_, &single_}); }

// Rows after the tokens repeat the last one. They write places of the caches that are written anew
// before a row reads them.
std::span<const float> Decoder::run(BoundProgram& program, std::size_t rows,
                                    std::span<const std::int32_t> tokens) {
  const auto first = static_cast<std::int32_t>(length_);
  const std::size_t last = tokens.size() - 1;
  tokens_.assign(tokens.begin(), tokens.end());
  tokens_.resize(rows, tokens.back());
  places_.resize(rows);
  std::iota(places_.begin(), places_.end(), first);
  positions_ = places_;
  std::fill(positions_.begin() + static_cast<std::ptrdiff_t>(last), positions_.end(),
            places_[last]);
  key_begin_.assign(rows, 0);
  key_end_.resize(rows);
  std::transform(positions_.begin(), positions_.end(), key_end_.begin(),
                 [](std::int32_t position) { return position + 1; });
  program.set("tokens", tokens_);
  program.set("positions", positions_);
  program.set("key_begin", key_begin_);
  program.set("key_end", key_end_);
  program.set("cache_places", places_);
  program.run_alone(spec::Action::kForward);
  length_ += static_cast<std::int64_t>(tokens.size());
  const TensorView logits = program.executor->output("logits");
  return {logits.as<const float>() + static_cast<std::int64_t>(last) * vocabulary_,
          static_cast<std::size_t>(vocabulary_)};
}

std::span<const float> Decoder::append(std::span<const std::int32_t> tokens) {
  ANABATIC_REQUIRE(!tokens.empty(), "[generate] expected at least one token, got none");
  const auto count = static_cast<std::int64_t>(tokens.size());
  ANABATIC_REQUIRE(length_ + count <= capacity_, "[generate] expected at most {} tokens, got {}",
                   capacity_, length_ + count);
  std::span<const float> logits;
  while (!tokens.empty()) {
    const bool fills_chunk = std::ssize(tokens) > kFewRows && length_ + kChunk <= num_places_;
    const std::size_t rows = fills_chunk ? static_cast<std::size_t>(kChunk) : 1;
    const auto fresh = tokens.first(std::min(rows, tokens.size()));
    logits = run(fills_chunk ? *chunk_ : *single_, rows, fresh);
    tokens = tokens.subspan(fresh.size());
  }
  return logits;
}

// Fills the caches with the prompt and returns the logits of its last token.
std::span<const float> Generator::read(std::span<const std::int32_t> prompt, std::int64_t room) {
  const std::int64_t longest = longest_of(session_.config()), needed = std::ssize(prompt) + room;
  if (!decoder_ || decoder_->capacity() < needed) {
    // Twice as many as before, so that a conversation is read again a few times only.
    std::int64_t capacity = decoder_ ? std::max(needed, 2 * decoder_->capacity()) : needed;
    if (longest > 0) capacity = std::min(capacity, longest);
    decoder_.reset();  // before the next one: the session has one at a time
    held_.clear();
    decoder_ = std::make_unique<Decoder>(session_, capacity);
    if (!session_.has_parameters()) session_.load_parameters();
    session_.refresh_derived();
  }
  // Logits are those of a token that goes through the model.
  const auto shared = std::mismatch(held_.begin(), held_.end(), prompt.begin(), prompt.end() - 1);
  length_ = std::ssize(prompt);
  num_kept_ = shared.first - held_.begin();
  decoder_->truncate(num_kept_);
  held_.assign(prompt.begin(), prompt.end());
  return decoder_->append(prompt.subspan(static_cast<std::size_t>(num_kept_)));
}

void Generator::run(std::span<const std::int32_t> prompt, std::span<const std::int64_t> stops,
                    const std::function<void(std::int32_t)>& emit) {
  const RunConfig::Generate& options = session_.run().generate;
  const auto length = static_cast<std::int64_t>(prompt.size());
  const std::int64_t longest = longest_of(session_.config());
  ANABATIC_REQUIRE(length > 0, "[generate] expected a prompt of at least one token, got none");
  ANABATIC_REQUIRE(longest <= 0 || length < longest,
                   "[generate] the prompt has {} tokens, the model takes {}", length, longest);
  std::int64_t room = options.max_new_tokens;
  if (longest > 0) room = std::min(room, longest - length);
  Sampler sampler(options, session_.config().spec.vocab_size);
  std::span<const float> logits = read(prompt, room);
  for (std::int64_t i = 0; i < room; ++i) {
    const std::int32_t token = sampler.next(logits, length + i);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) return;
    emit(token);
    if (i + 1 == room) break;
    logits = decoder_->append(std::span(&token, 1));
    held_.push_back(token);
  }
  if (room < options.max_new_tokens)
    log_warning(
        "[generate] stopped after {} of {} new tokens: with the {} of the prompt they fill the "
        "model's max_position_embeddings {}",
        room, options.max_new_tokens, length, longest);
}

void generate(ModelSession& session, std::span<const std::int32_t> prompt,
              std::span<const std::int64_t> stops, const std::function<void(std::int32_t)>& emit) {
  Generator(session).run(prompt, stops, emit);
}

void generate_text(const RunConfig& run, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit) {
  ANABATIC_REQUIRE(!run.model.path.empty(), "[generate] expected model.path, got none");
  ModelSession session(with_inference_precision(without_mtp(run)), false);
  generate_text(session, prompt, emit);
}

void generate_text(ModelSession& session, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit) {
  const io::Tokenizer tokenizer =
      io::Tokenizer::load(tokenizer_folder_or_file(session.run().model.path));
  RunConfig rules = session.run();
  rules.data.append_eos = io::AddToken::kNever;  // a prompt is continued
  const io::SpecialTokens special =
      special_tokens_of(rules, &tokenizer, session.config().eos_token_ids);
  log_warnings(special);
  std::vector<std::int32_t> ids = tokenizer.encode(prompt, false);
  special.document.put_before(ids, 0);
  // The prompt goes through the stream too, unprinted: a tokenizer may drop the space that begins a
  // text.
  io::TokenStream stream(tokenizer, true);
  for (const std::int32_t id : ids) stream.push(id);
  stream.finish();  // a prompt may end in U+FFFD, which the stream takes for half a character
  generate(session, ids, special.stops, [&](std::int32_t token) { emit(stream.push(token)); });
  emit(stream.finish());
}

}  // namespace anabatic::train
