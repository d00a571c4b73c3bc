// SPDX-License-Identifier: Apache-2.0
#include "io/chat/trained_tokens.h"

#include <algorithm>

namespace anabatic::io {
namespace {

constexpr std::size_t kNowhere = SIZE_MAX;

class Marker {
 public:
  Marker(const RenderedChat& chat, std::span<const std::uint32_t> begins,
         const std::function<bool(std::size_t)>& is_special)
      : chat_(chat), text_(chat.rendered.text), begins_(begins), is_special_(is_special) {}

  TrainedTokens run(LossOn loss_on, std::size_t first_completion) {
    result_.weights.assign(begins_.size(), 0);
    if (loss_on == LossOn::kAll) {
      result_.spans.push_back({0, text_.size(), 0});
      result_.weights.assign(begins_.size(), 1);
      return std::move(result_);
    }
    for (std::size_t i = 0; i < chat_.messages.size(); ++i) mark(i, loss_on, first_completion);
    if (chat_.has_generation_blocks && loss_on == LossOn::kAssistant) mark_generated();
    return std::move(result_);
  }

 private:
  // The first byte of a message after `i`, beyond which its turn does not reach.
  std::size_t limit_of(std::size_t i) const {
    std::size_t limit = text_.size();
    for (std::size_t j = i + 1; j < chat_.messages.size(); ++j)
      limit = std::min(limit, chat_.messages[j].first);
    return limit;
  }
  // Where a generation would begin: after a generation prompt, else at the turn's own text.
  std::size_t start_of(const ChatMessage& message, std::size_t limit) const {
    const std::string& prompt = chat_.generation_prompt;
    const std::size_t own = message.has_text ? message.begin : limit;
    const std::size_t found = prompt.empty() ? std::string::npos : text_.find(prompt, at_);
    if (found != std::string::npos && found + prompt.size() <= own) return found + prompt.size();
    if (message.has_text && !message.begins_with_call) return message.begin;
    // The part of the prompt that the turn has, such as a header without its thinking.
    for (std::size_t size = prompt.size(); size > 1; --size) {
      if (prompt[size - 1] != '>' && prompt[size - 1] != '\n') continue;
      const std::size_t part = text_.find(std::string_view(prompt).substr(0, size), at_);
      if (part != std::string::npos && part + size <= own) return part + size;
    }
    return message.has_text ? message.begin : kNowhere;
  }
  // After the last own character. The name of a call that a template repeats later, in front of the
  // tool's answer, is not the turn's.
  std::size_t end_of_own_text(std::size_t i, std::size_t limit) const {
    std::size_t begin = 0, end = chat_.messages[i].begin;
    std::string calls;
    for (const TextSpan& span : chat_.rendered.spans) {
      const bool is_own = span.message == static_cast<std::int32_t>(i) && span.field;
      if (is_own && *span.field != "role" && begin <= limit) {
        const std::string part = text_.substr(begin, span.end - begin);
        const bool is_call = *span.field == "tool_calls";
        const bool is_repeated =
            is_call && calls.find(part) != std::string::npos && begins_header(end, begin);
        if (!is_repeated) end = span.end;
        if (is_call) calls += part + "\n";
      }
      begin = span.end;
    }
    return end;
  }
  // Whether the text has there what generation prompts begin with.
  bool begins_header(std::size_t begin, std::size_t end) const {
    const std::string& prompt = chat_.generation_prompt;
    const std::string_view opening = std::string_view(prompt).substr(0, prompt.find('>') + 1);
    const auto gap = std::string_view(text_).substr(begin, std::max(end, begin) - begin);
    return !opening.empty() && gap.find(opening) != std::string_view::npos;
  }
  std::size_t token_from(std::size_t byte) const {
    return static_cast<std::size_t>(std::lower_bound(begins_.begin(), begins_.end(), byte) -
                                    begins_.begin());
  }
  std::size_t end_of_token(std::size_t token) const {
    return token + 1 < begins_.size() ? begins_[token + 1] : text_.size();
  }

  void mark(std::size_t i, LossOn loss_on, std::size_t first_completion) {
    const ChatMessage& message = chat_.messages[i];
    const bool is_completion = loss_on == LossOn::kCompletion;
    if (is_completion ? i != first_completion : !message.is_assistant) {
      if (message.has_text) at_ = std::max(at_, message.end);
      return;
    }
    const std::size_t limit = is_completion ? text_.size() : limit_of(i);
    const std::size_t start = start_of(message, limit);
    const std::size_t last = is_completion      ? text_.size()
                             : message.has_text ? end_of_own_text(i, limit)
                                                : start;
    if (start == kNowhere) {
      result_.untrained.push_back(i);
      result_.unstopped.push_back(i);
      return;
    }
    std::size_t end = kNowhere;
    for (std::size_t token = token_from(last); token < begins_.size() && begins_[token] < limit;
         ++token) {
      if (!is_special_(token)) continue;
      end = end_of_token(token);
      break;
    }
    if (end == kNowhere) {
      const bool is_last = i + 1 == chat_.messages.size();
      end = is_last ? std::max(last, text_.find_last_not_of(" \n\r\t") + 1) : last;
      if (is_last && !is_completion && !chat_.has_generation_blocks)
        append_eos(message);
      else if (!is_completion)
        result_.unstopped.push_back(i);
    }
    at_ = end;
    if (!chat_.has_generation_blocks || is_completion) train(start, end, i);
  }

  void append_eos(const ChatMessage& message) {
    result_.appends_eos = true;
    result_.weights.push_back(static_cast<float>(message.weight));
  }

  void train(std::size_t begin, std::size_t end, std::size_t i) {
    result_.spans.push_back({begin, end, i});
    const std::size_t first = token_from(begin), behind = token_from(end);
    if (first == behind && !result_.appends_eos) result_.untrained.push_back(i);
    for (std::size_t token = first; token < behind; ++token)
      result_.weights[token] = static_cast<float>(chat_.messages[i].weight);
  }

  // The text inside {% generation %} belongs to the message whose text is next to it.
  void mark_generated() {
    result_.unstopped.clear();
    result_.untrained.clear();
    std::size_t begin = 0, message = 0;
    for (std::size_t s = 0; s < chat_.rendered.spans.size(); ++s) {
      const TextSpan& span = chat_.rendered.spans[s];
      if (span.message >= 0) message = static_cast<std::size_t>(span.message);
      if (span.is_generated) {
        std::size_t owner = message;
        for (std::size_t next = s;
             next < chat_.rendered.spans.size() && chat_.rendered.spans[next].is_generated; ++next)
          if (chat_.rendered.spans[next].message >= 0) {
            owner = static_cast<std::size_t>(chat_.rendered.spans[next].message);
            break;
          }
        train(begin, span.end, owner);
      }
      begin = span.end;
    }
    result_.untrained.clear();
    std::vector<bool> has_stop(chat_.messages.size()), has_token(chat_.messages.size());
    for (const auto& span : result_.spans)
      for (std::size_t token = token_from(span.begin); token < token_from(span.end); ++token) {
        has_token[span.message] = true;
        has_stop[span.message] = has_stop[span.message] || is_special_(token);
      }
    for (std::size_t i = 0; i < chat_.messages.size(); ++i) {
      if (!chat_.messages[i].is_assistant) continue;
      if (!has_token[i]) result_.untrained.push_back(i);
      if (!has_stop[i]) result_.unstopped.push_back(i);
    }
  }

  const RenderedChat& chat_;
  const std::string& text_;
  std::span<const std::uint32_t> begins_;
  const std::function<bool(std::size_t)>& is_special_;
  std::size_t at_ = 0;  // after the turns before
  TrainedTokens result_;
};

}  // namespace

TrainedTokens trained_tokens(const RenderedChat& chat, LossOn loss_on,
                             std::span<const std::uint32_t> begins,
                             const std::function<bool(std::size_t)>& is_special,
                             std::size_t first_completion) {
  return Marker(chat, begins, is_special).run(loss_on, first_completion);
}

}  // namespace anabatic::io
