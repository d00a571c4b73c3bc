// SPDX-License-Identifier: Apache-2.0
// Speaks with template_parity.py: one JSON request a line on standard input, one answer a line.
//   {"template", "context"}                 ->  {"text", "spans": [[end, message, field,
//   generated], ...]}
//   {"template", "row", "named_tokens"
//    [, "add_generation_prompt"]}           ->  the same of a conversation
//     "special": [texts of special tokens]      and "trained": [[begin, end], ...], "unstopped",
//     "appends_eos"
// With "repeat" it is rendered that often, and "seconds" tells how much CPU time that took. An
// error is
// {"error", "unsupported"}.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "base/json.h"
#include "io/chat/trained_tokens.h"

namespace {

using anabatic::OrderedJson;
using anabatic::io::ChatFormat;
using anabatic::io::ChatTemplate;
using anabatic::io::RenderedChat;
using anabatic::io::RenderedText;

OrderedJson show(const RenderedText& rendered) {
  OrderedJson spans = OrderedJson::array();
  for (const auto& span : rendered.spans)
    spans.push_back({span.end, span.message, span.field ? OrderedJson(*span.field) : OrderedJson(),
                     span.is_generated});
  return {{"text", rendered.text}, {"spans", std::move(spans)}};
}

// Special tokens are the texts that the template wrote; each character between them is a token.
void add_trained(const OrderedJson& request, const RenderedChat& chat, OrderedJson& result) {
  const std::string& text = chat.rendered.text;
  std::vector<std::uint32_t> begins;
  std::vector<bool> is_special;
  const auto ranges = chat.added_token_ranges();
  const auto allows = [&](std::size_t begin, std::size_t end) {
    return std::all_of(ranges.begin(), ranges.end(),
                       [&, from = std::size_t{0}](const auto& range) mutable {
                         const bool touches = from < end && begin < range.end;
                         from = range.end;
                         return !touches || range.match == anabatic::io::AddedTokenMatch::kAll;
                       });
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t size = 0;
    for (const auto& special : request["special"]) {
      const auto& token = special.get_ref<const std::string&>();
      if (text.compare(at, token.size(), token) == 0 && allows(at, at + token.size()))
        size = std::max(size, token.size());
    }
    begins.push_back(static_cast<std::uint32_t>(at));
    is_special.push_back(size > 0);
    at += std::max<std::size_t>(size, 1);
  }
  const auto trained = trained_tokens(chat, anabatic::io::LossOn::kAssistant, begins,
                                      [&](std::size_t token) { return is_special[token]; });
  result["trained"] = OrderedJson::array();
  for (std::size_t i = 0; i < begins.size(); ++i) {
    if (trained.weights[i] == 0) continue;
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : text.size();
    auto& spans = result["trained"];
    if (!spans.empty() && spans.back()[1] == begins[i])
      spans.back()[1] = end;
    else
      spans.push_back({begins[i], end});
  }
  result["unstopped"] = trained.unstopped;
  result["appends_eos"] = trained.appends_eos;
}

class Answers {
 public:
  OrderedJson answer(const OrderedJson& request) {
    const auto source = request["template"].get<std::string>();
    const int repeat = request.value("repeat", 1);
    OrderedJson result;
    std::clock_t begin = 0;
    if (request.contains("row")) {
      const auto& named = request["named_tokens"];
      const ChatFormat& format = known(formats_, source + named.dump(),
                                       [&] { return ChatFormat(source, "template", named); });
      const bool prompts = request.value("add_generation_prompt", false);
      RenderedChat chat;
      double seconds = 0;
      for (int done = 0; done < repeat; done += kRowsAtOnce) {
        std::vector<OrderedJson> rows(
            static_cast<std::size_t>(std::min(repeat - done, kRowsAtOnce)), request["row"]);
        begin = std::clock();
        for (OrderedJson& row : rows) chat = format.render(std::move(row), prompts);
        seconds += seconds_since(begin);
      }
      result["seconds"] = seconds;
      result.update(show(chat.rendered));
      if (request.contains("special")) add_trained(request, chat, result);
    } else {
      const ChatTemplate& compiled =
          known(templates_, source, [&] { return ChatTemplate::parse(source, "template"); });
      begin = std::clock();
      RenderedText rendered;
      for (int i = 0; i < repeat; ++i) rendered = compiled.render(request["context"]);
      result["seconds"] = seconds_since(begin);
      result.update(show(rendered));
    }
    return result;
  }

 private:
  static constexpr int kRowsAtOnce = 200;

  static double seconds_since(std::clock_t begin) {
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }
  template <class T, class Make>
  const T& known(std::map<std::string, T>& table, const std::string& key, Make make) {
    if (const auto found = table.find(key); found != table.end()) return found->second;
    if (table.size() > 100) table.clear();
    return table.emplace(key, make()).first->second;
  }
  std::map<std::string, ChatFormat> formats_;
  std::map<std::string, ChatTemplate> templates_;
};

}  // namespace

int main() {
  Answers answers;
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson result;
    try {
      result = answers.answer(OrderedJson::parse(line));
    } catch (const anabatic::InvalidArgument& error) {
      result = {{"error", error.what()}, {"unsupported", false}};
    } catch (const anabatic::Unsupported& error) {
      result = {{"error", error.what()}, {"unsupported", true}};
    }
    std::cout << anabatic::dump_json(result) << std::endl;
  }
}
