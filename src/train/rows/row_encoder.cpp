// SPDX-License-Identifier: Apache-2.0
#include "train/rows/row_encoder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "io/data/fingerprint.h"
#include "io/data/rows.h"

namespace anabatic::train {
namespace {

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

// Special tokens that an encoding which matches them everywhere has more often.
std::vector<std::int32_t> suppressed_in(const std::string& text,
                                        const std::vector<std::int32_t>& ids,
                                        const io::Tokenizer& tokenizer) {
  std::map<std::int32_t, std::int64_t> counts;
  for (const std::int32_t id : tokenizer.encode(text, false))
    if (tokenizer.is_special(id)) ++counts[id];
  for (const std::int32_t id : ids)
    if (tokenizer.is_special(id)) --counts[id];
  std::vector<std::int32_t> suppressed;
  for (const auto& [id, count] : counts)
    for (std::int64_t i = 0; i < count; ++i) suppressed.push_back(id);
  return suppressed;
}

// The role of a message with content, of which the template writes nothing; "" of another one.
std::string role_left_out(const io::RenderedChat& chat, std::size_t i) {
  if (chat.messages[i].has_text) return "";
  const OrderedJson& message = (*chat.context)["messages"][i];
  const auto content = message.find("content");
  const bool has_content =
      content != message.end() && content->is_string() &&
      content->get_ref<const std::string&>().find_first_not_of(" \n\r\t") != std::string::npos;
  return has_content ? message["role"].get<std::string>() : "";
}

RowNotes notes_on(const io::RenderedChat& chat, const io::EncodedText& tokens,
                  const io::TrainedTokens& trained, const io::Tokenizer& tokenizer) {
  RowNotes notes{.is_chat = true, .has_generation_blocks = chat.has_generation_blocks};
  for (const std::size_t i : trained.unstopped)
    if (chat.messages[i].weight != 0) notes.unstopped.push_back(i);
  const std::string& text = chat.rendered.text;
  for (const io::TrainedTokens::Span& span : trained.spans) {
    const io::ChatMessage& message = chat.messages[span.message];
    if (message.is_assistant && message.has_text && span.begin < message.begin &&
        text.find_first_not_of(" \n\r\t", span.begin) >= message.begin)
      notes.begun_by_space.push_back(span.message);
  }
  notes.suppressed = suppressed_in(text, tokens.ids, tokenizer);
  for (std::size_t i = 0; i < chat.messages.size(); ++i)
    if (const std::string role = role_left_out(chat, i); !role.empty())
      notes.left_out.emplace_back(i, role);
  return notes;
}

// The first token with a byte of the completion, and whether it has one of the prompt too.
std::pair<std::size_t, bool> first_of_completion(const io::EncodedText& tokens,
                                                 std::size_t prompt_bytes) {
  const auto found = std::ranges::lower_bound(tokens.begins, prompt_bytes);
  const auto first = static_cast<std::size_t>(found - tokens.begins.begin());
  const bool is_joined = first > 0 && (found == tokens.begins.end() || *found > prompt_bytes);
  return {is_joined ? first - 1 : first, is_joined};
}

}  // namespace

RowEncoder::RowEncoder(const RunConfig& run, const io::Tokenizer& tokenizer,
                       io::SpecialTokens special)
    : tokenizer_(tokenizer), special_(std::move(special)), data_(run.data) {
  try {
    chat_.emplace(run, tokenizer);
  } catch (const Error& error) {
    if (!data_.chat_template.empty()) throw;
    chat_problem_ = error.what();
  }
}

void RowEncoder::encode(OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                        std::vector<float>& weights, std::vector<std::size_t>& ends,
                        RowNotes* notes) const {
  if (kind == io::RowKind::kPreference)
    return encode_pair(io::read_preference(std::move(row)), ids, weights, ends);
  io::TrainingRow read = io::read_row(std::move(row), kind, io::TokenizeOptions().json_field);
  if (read.is_chat)
    encode_chat(std::move(read), ids, weights, notes);
  else
    encode_text(read, ids, weights);
  ends.push_back(ids.size());
}

void RowEncoder::require_template() const {
  if (!chat_) throw io::WrongForAllRows(fmt::format("[data] rows of messages: {}", chat_problem_));
}

void RowEncoder::encode_chat(io::TrainingRow row, std::vector<std::int32_t>& ids,
                             std::vector<float>& weights, RowNotes* notes) const {
  require_template();
  const io::RenderedChat chat = chat_->format().render(std::move(row.chat));
  const RangedText text = chat_->ranged(chat);
  const io::EncodedText tokens = tokenizer_.encode_with_begins(text.text, text.ranges);
  const io::TrainedTokens trained = io::trained_tokens(
      chat, loss_on_of(data_.loss_on), tokens.begins,
      [&](std::size_t i) { return tokenizer_.is_special(tokens.ids[i]); }, row.first_completion);
  for (const io::ChatMessage& message : chat.messages)
    ANABATIC_REQUIRE(std::isfinite(static_cast<float>(message.weight)),
                     "expected a weight that a float holds, got {}", message.weight);
  if (notes != nullptr)
    *notes = notes_on(chat, tokens, trained, tokenizer_);
  else if (data_.require_stop_token)
    require_trained(chat, trained);
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
  std::size_t num_untrained = 0;
  if (row.prompt_bytes > 0 && data_.loss_on != "all") {
    const io::EncodedText tokens = tokenizer_.encode_with_begins(row.text);
    ids.insert(ids.end(), tokens.ids.begin(), tokens.ids.end());
    const auto [untrained, is_joined] = first_of_completion(tokens, row.prompt_bytes);
    num_untrained = untrained;
    if (is_joined) ++num_joined_;
  } else {
    tokenizer_.encode_append(row.text, false, ids);
  }
  num_untrained += special_.document.put_before(ids, first);  // nothing comes before BOS
  special_.document.put_behind(ids, first);
  weights.resize(ids.size(), 1.0f);
  std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(first), num_untrained, 0.0f);
}

std::vector<std::int32_t> RowEncoder::encode_messages(const io::PreferenceRow& row,
                                                      OrderedJson messages,
                                                      bool add_generation_prompt) const {
  require_template();
  OrderedJson chat = row.others;
  chat["messages"] = std::move(messages);
  const RangedText text =
      chat_->ranged(chat_->format().render(std::move(chat), add_generation_prompt));
  return tokenizer_.encode_with_begins(text.text, text.ranges).ids;
}

std::vector<std::int32_t> RowEncoder::encode_prompt(const io::PreferenceRow& row) const {
  std::vector<std::int32_t> ids =
      row.is_chat ? encode_messages(row, row.prompt, true)
                  : tokenizer_.encode(row.prompt.get_ref<const std::string&>(), false);
  special_.document.put_before(ids, 0);
  return ids;
}

std::vector<std::int32_t> RowEncoder::encode_with(const io::PreferenceRow& row,
                                                  const OrderedJson& completion) const {
  std::vector<std::int32_t> ids;
  if (row.is_chat) {
    OrderedJson messages = row.prompt;
    messages.insert(messages.end(), completion.begin(), completion.end());
    ids = encode_messages(row, std::move(messages), false);
  } else {
    ids = tokenizer_.encode(
        row.prompt.get_ref<const std::string&>() + completion.get_ref<const std::string&>(), false);
    special_.document.put_behind(ids, 0);
  }
  special_.document.put_before(ids, 0);
  return ids;
}

void RowEncoder::encode_pair(const io::PreferenceRow& row, std::vector<std::int32_t>& ids,
                             std::vector<float>& weights, std::vector<std::size_t>& ends) const {
  const std::vector<std::int32_t> prompt = encode_prompt(row);
  const std::vector<std::int32_t> completions[] = {encode_with(row, row.chosen),
                                                   encode_with(row, row.rejected)};
  ANABATIC_REQUIRE(completions[0] != completions[1],
                   "expected \"chosen\" and \"rejected\" to differ, got the same tokens");
  bool is_joined = false;
  for (const std::vector<std::int32_t>& whole : completions) {
    const auto end = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end()).first;
    is_joined |= end != prompt.end();
    const std::size_t num_untrained = static_cast<std::size_t>(end - prompt.begin()),
                      first = ids.size();
    ANABATIC_REQUIRE(num_untrained < whole.size(),
                     "expected a completion after the {} tokens of the prompt, got none",
                     num_untrained);
    ids.insert(ids.end(), whole.begin(), whole.end());
    weights.resize(first + num_untrained, 0.0f);
    weights.resize(ids.size(), 1.0f);
    ends.push_back(ids.size());
  }
  if (is_joined) ++num_joined_;
}

std::string RowEncoder::rules() const {
  std::string rules =
      fmt::format("loss_on {} by bytes, special in content {}, stop token {}", data_.loss_on,
                  data_.allow_special_in_content, data_.require_stop_token);
  if (!chat_) return rules;
  const io::ChatFormat& format = chat_->format();
  const bool prints_time = format.source().find("strftime_now") != std::string::npos;
  return rules + fmt::format(", template {}, tokens {}, now {}", io::content_hash(format.source()),
                             format.named_tokens().dump(),
                             data_.now.empty() && prints_time ? today() : data_.now);
}

std::string RowEncoder::template_lines_of(std::int32_t id) const {
  if (!chat_) return "";
  std::vector<std::string> texts{tokenizer_.id_to_token(id)};
  for (const auto& [name, text] : chat_->format().named_tokens().items())
    if (text == texts.front()) texts.push_back(name);
  const std::vector<std::int64_t> lines = chat_->format().lines_with(texts);
  if (lines.empty()) return "";
  return fmt::format("{}, line {}", chat_->format().name(), fmt::join(lines, ", "));
}

void RowEncoder::log_counts() const {
  if (num_joined_ > 0)
    log_info(
        "data: in {} rows a token has the prompt's end and the completion's begin; it is trained",
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
  options.has_pairs = trains_on_pairs(run);
  options.row_rules = encoder->rules() + (options.has_pairs ? ", pairs" : "");
  options.encode_row = [encoder](OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                                 std::vector<float>& weights, std::vector<std::size_t>& ends) {
    encoder->encode(std::move(row), kind, ids, weights, ends);
  };
  return encoder;
}

}  // namespace anabatic::train
