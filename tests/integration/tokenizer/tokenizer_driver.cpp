// SPDX-License-Identifier: Apache-2.0
// Speaks with tokenizer_parity.py: one JSON request a line on standard input, one answer a line.
//   tokenizer_driver TOKENIZER                 serve encode / decode / stream requests
//   tokenizer_driver TOKENIZER --speed FILE    print the MB of FILE encoded in a second of CPU time
//   tokenizer_driver TOKENIZER --json          print the tokenizer.json that it is equal to
//   tokenizer_driver --train FOLDER VOCAB THREADS FILES...
#include <fmt/core.h>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/tokenizer/bpe_trainer.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/regex.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "io/tokenizer/unicode.h"

namespace {

using anabatic::io::Tokenizer;

anabatic::io::tokenizer::Regex regex_of(const nlohmann::json& request, const char* field) {
  using anabatic::io::tokenizer::Regex;
  const bool is_plain = request.value("engine", "any") == "oniguruma";
  return {request[field].get<std::string>(), "request",
          is_plain ? Regex::Engine::kOniguruma : Regex::Engine::kAny};
}

// The characters that match a pattern by themselves, as ranges [first, last].
nlohmann::json characters_of(const anabatic::io::tokenizer::Regex& regex) {
  anabatic::io::tokenizer::RegexScratch scratch;
  nlohmann::json ranges = nlohmann::json::array();
  bool was_match = false;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    anabatic::io::tokenizer::append_utf8(text, c);
    anabatic::io::tokenizer::Match match;
    const bool is_match =
        regex.find(text, 0, scratch, match) && match.begin == 0 && match.end == text.size();
    if (is_match && was_match)
      ranges.back()[1] = static_cast<std::uint32_t>(c);
    else if (is_match)
      ranges.push_back({static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c)});
    was_match = is_match;
  }
  return ranges;
}

// The pieces of `text` that match.
nlohmann::json matches_of(const anabatic::io::tokenizer::Regex& regex, const std::string& text) {
  anabatic::io::tokenizer::RegexScratch scratch;
  anabatic::io::tokenizer::MatchCursor cursor(regex, text, scratch);
  nlohmann::json matches = nlohmann::json::array();
  for (anabatic::io::tokenizer::Match match; cursor.next(match);)
    matches.push_back(text.substr(match.begin, match.end - match.begin));
  return matches;
}

std::string normalized(const nlohmann::json& component, std::string text) {
  anabatic::io::tokenizer::RegexScratch scratch;
  for (const auto& normalizer :
       anabatic::io::tokenizer::load_normalizers({component, "normalizer"}))
    normalizer->apply(text, false, scratch);
  return text;
}

nlohmann::json words_of(const nlohmann::json& component, const std::string& text) {
  const anabatic::io::tokenizer::PreTokenizers stages({component, "pre_tokenizer"});
  anabatic::io::tokenizer::CutScratch scratch;
  nlohmann::json words = nlohmann::json::array();
  stages.cut({text, anabatic::io::tokenizer::Start::kInput}, scratch,
             [&](std::string_view word) { words.push_back(word); });
  return words;
}

nlohmann::json answer(const Tokenizer& tokenizer, const nlohmann::json& request) {
  const bool special = request.value("special", false);
  if (request.contains("regex")) return matches_of(regex_of(request, "regex"), request["text"]);
  if (request.contains("class")) return characters_of(regex_of(request, "class"));
  if (request.contains("normalizer")) return normalized(request["normalizer"], request["text"]);
  if (request.contains("pre_tokenizer")) return words_of(request["pre_tokenizer"], request["text"]);
  if (request.contains("text"))
    return tokenizer.encode(request["text"].get<std::string>(), special);
  const auto ids = request["ids"].get<std::vector<std::int32_t>>();
  if (!request.value("stream", false)) return tokenizer.decode(ids, special);
  anabatic::io::TokenStream stream(tokenizer, special);
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string part = stream.push(id);
    if (anabatic::io::find_invalid_utf8(part)) return "a part that is not UTF-8";
    text += part;
  }
  return text + stream.finish();
}

void serve(const Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json result;
    try {
      result = answer(tokenizer, anabatic::parse_json(line));
    } catch (const anabatic::Error& error) {
      result = {{"error", error.what()}};
    }
    std::cout << anabatic::dump_json(result) << std::endl;
  }
}

void measure(const Tokenizer& tokenizer, const std::string& file) {
  const std::string text = anabatic::read_file(file);
  std::vector<std::int32_t> ids;
  for (int round = 0; round < 3; ++round) {
    ids.clear();
    const std::clock_t begin = std::clock();
    tokenizer.encode_append(text, false, ids);
    const double spent_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    fmt::print("{:.1f} MB/s, {} bytes, {} ids\n", static_cast<double>(text.size()) / spent_s / 1e6,
               text.size(), ids.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() >= 5 && arguments[0] == "--train") {
      const std::vector<std::filesystem::path> files(arguments.begin() + 4, arguments.end());
      anabatic::io::train_bpe(
          {.vocab_size = std::stoi(arguments[2]), .threads = std::stoi(arguments[3])}, files,
          arguments[1]);
    } else if (arguments.size() == 3 && arguments[1] == "--speed") {
      measure(Tokenizer::load(arguments[0]), arguments[2]);
    } else if (arguments.size() == 2 && arguments[1] == "--json") {
      std::cout << anabatic::io::tokenizer_json(arguments[0]);
    } else if (arguments.size() == 1) {
      serve(Tokenizer::load(arguments[0]));
    } else {
      fmt::print(stderr, "tokenizer_driver: see the head of its source for the arguments\n");
      return 2;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
