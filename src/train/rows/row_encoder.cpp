// SPDX-License-Identifier: Apache-2.0
#include "train/rows/row_encoder.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "io/data/fingerprint.h"
#include "io/data/rows.h"
#include "train/model_session.h"

namespace anabatic::train {
namespace {

io::RenderTime time_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"}) {
    std::tm time{};
    const char* const end = ::strptime(text.c_str(), form, &time);
    if (end != nullptr && *end == '\0') return time;
  }
  throw InvalidArgument(fmt::format(
      "[data] data.now: expected a date such as 2026-05-01 or 2026-05-01T12:30:00, got '{}'",
      text));
}

io::LossOn loss_on_of(const std::string& word) {
  if (word == "all") return io::LossOn::kAll;
  return word == "completion" ? io::LossOn::kCompletion : io::LossOn::kAssistant;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  ::localtime_r(&now, &time);
  return fmt::format("{}-{}-{}", time.tm_year, time.tm_mon, time.tm_mday);
}

}  // namespace

RowEncoder::RowEncoder(const RunConfig& run, const io::Tokenizer& tokenizer,
                       io::SpecialTokens special)
    : tokenizer_(tokenizer), special_(std::move(special)), data_(run.data) {
  const io::RenderTime now = time_of(data_.now);
  try {
    chat_.emplace(io::ChatFormat::load(model_directory(run.model.path), data_.chat_template, now));
  } catch (const Error& error) {
    if (!data_.chat_template.empty()) throw;
    chat_problem_ = error.what();
  }
}

void RowEncoder::encode(OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                        std::vector<float>& weights) const {
  io::TrainingRow read = io::read_row(std::move(row), kind, io::TokenizeOptions().json_field);
  if (read.is_chat)
    encode_chat(std::move(read), ids, weights);
  else
    encode_text(read, ids, weights);
}

void RowEncoder::encode_chat(io::TrainingRow row, std::vector<std::int32_t>& ids,
                             std::vector<float>& weights) const {
  ANABATIC_REQUIRE(chat_.has_value(), "{}", chat_problem_);
  const io::RenderedChat chat = chat_->render(std::move(row.chat));
  const io::EncodedText tokens = tokenizer_.encode_with_begins(
      chat.rendered.text, data_.allow_special_in_content ? std::vector<io::AddedTokenRange>()
                                                         : chat.added_token_ranges());
  const io::TrainedTokens trained = io::trained_tokens(
      chat, loss_on_of(data_.loss_on), tokens.begins,
      [&](std::size_t i) { return tokenizer_.is_special(tokens.ids[i]); }, row.first_completion);
  for (const io::ChatMessage& message : chat.messages)
    ANABATIC_REQUIRE(std::isfinite(static_cast<float>(message.weight)),
                     "expected a weight that a float holds, got {}", message.weight);
  if (data_.require_stop_token) require_trained(chat, trained);
  const std::size_t first = ids.size();
  ids.insert(ids.end(), tokens.ids.begin(), tokens.ids.end());
  if (trained.appends_eos) {
    ANABATIC_REQUIRE(
        special_.eos.has_value(),
        "the template ends the last turn with no special token: expected an EOS to put "
        "after it, and no file of the model names one");
    ids.push_back(*special_.eos);
    ++num_closed_;
  }
  // Nothing comes before BOS.
  weights.resize(first + special_.document.put_before(ids, first), 0.0f);
  weights.insert(weights.end(), trained.weights.begin(), trained.weights.end());
}

void RowEncoder::require_trained(const io::RenderedChat& chat,
                                 const io::TrainedTokens& trained) const {
  for (const std::size_t i : trained.unstopped)
    ANABATIC_REQUIRE(chat.messages[i].weight == 0,
                     "messages[{}]: expected a special token after the turn, as its trained end, "
                     "and the template writes none (data.require_stop_token: false trains without)",
                     i);
  ANABATIC_REQUIRE(
      std::ranges::any_of(trained.weights, [](float weight) { return weight != 0; }),
      "expected a trained token, got none (data.require_stop_token: false leaves such rows out)");
}

void RowEncoder::encode_text(const io::TrainingRow& row, std::vector<std::int32_t>& ids,
                             std::vector<float>& weights) const {
  const std::size_t first = ids.size();
  tokenizer_.encode_append(row.text, false, ids);
  std::size_t num_untrained = 0;
  if (row.prompt_bytes > 0 && data_.loss_on != "all") {
    const std::vector<std::int32_t> prompt =
        tokenizer_.encode(std::string_view(row.text).substr(0, row.prompt_bytes), false);
    const auto whole = ids.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = std::mismatch(prompt.begin(), prompt.end(), whole, ids.end()).first;
    num_untrained = static_cast<std::size_t>(end - prompt.begin());
    if (end != prompt.end()) ++num_joined_;
  }
  num_untrained += special_.document.put_before(ids, first);  // nothing comes before BOS
  special_.document.put_behind(ids, first);
  weights.resize(ids.size(), 1.0f);
  std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(first), num_untrained, 0.0f);
}

std::string RowEncoder::rules() const {
  std::string rules = fmt::format("loss_on {}, special in content {}, stop token {}", data_.loss_on,
                                  data_.allow_special_in_content, data_.require_stop_token);
  if (!chat_) return rules;
  const bool prints_time = chat_->source().find("strftime_now") != std::string::npos;
  return rules + fmt::format(", template {}, tokens {}, now {}", io::content_hash(chat_->source()),
                             chat_->named_tokens().dump(),
                             data_.now.empty() && prints_time ? today() : data_.now);
}

void RowEncoder::log_counts() const {
  if (num_joined_ > 0)
    log_info("data: in {} rows the prompt's last tokens go on into the completion, and are trained",
             num_joined_.load());
  if (num_closed_ > 0)
    log_info(
        "data: the template ends the last turn of {} rows with no special token: EOS is put "
        "after it",
        num_closed_.load());
}

std::shared_ptr<const RowEncoder> add_rows(io::TokenizeOptions& options, const RunConfig& run,
                                           const io::Tokenizer& tokenizer,
                                           const io::SpecialTokens& special) {
  auto encoder = std::make_shared<const RowEncoder>(run, tokenizer, special);
  options.has_rows = true;
  options.row_rules = encoder->rules();
  options.encode_row = [encoder](OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                                 std::vector<float>& weights) {
    encoder->encode(std::move(row), kind, ids, weights);
  };
  return encoder;
}

}  // namespace anabatic::train
