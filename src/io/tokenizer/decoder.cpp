// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/decoder.h"

#include "base/error.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, const std::string& from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens, RegexScratch&) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const std::size_t before = bytes.size();
      std::size_t length = 0;
      for (std::size_t at = 0; at < token.size(); at += length) {
        const auto byte = symbol_byte(decode_utf8(token, at, length));
        if (!byte) {  // not of the alphabet, such as an added token: as it is
          bytes.resize(before);
          bytes += token;
          break;
        }
        bytes.push_back(static_cast<char>(*byte));
      }
    }
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
};

class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens, RegexScratch&) const override {
    Tokens result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (!find_invalid_utf8(bytes)) {
        result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of(token);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      result.push_back(std::move(token));
    }
    flush();
    tokens = std::move(result);
  }

 private:
  // 0xNN of "<0xNN>", else -1. Like Rust's parser it takes "+N" for a byte.
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (std::size_t i = 3; i < 5; ++i) {
      const char c = token[i];
      if (i == 3 && c == '+') continue;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = 16 * value + digit;
    }
    return value;
  }
};

class FuseDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens, RegexScratch&) const override {
    std::string joined;
    for (const std::string& token : tokens) joined += token;
    tokens.assign(1, std::move(joined));
  }
};

class StripDecoder final : public Decoder {
 public:
  StripDecoder(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void apply(Tokens& tokens, RegexScratch&) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (std::int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  std::int64_t start_;
  std::int64_t stop_;
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node) : replace_(node) {}
  void apply(Tokens& tokens, RegexScratch& scratch) const override {
    std::string result;
    for (std::string& token : tokens) {
      result.clear();
      replace_.apply(token, scratch, result);
      token = result;
    }
  }

 private:
  Replace replace_;
};

class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drops_first_(drops_first) {}
  void apply(Tokens& tokens, RegexScratch&) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], replacement_, i == 0 && drops_first_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool drops_first_;
};

class SuffixDecoder final : public Decoder {
 public:
  explicit SuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(Tokens& tokens, RegexScratch&) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

void append_decoders(const JsonNode& node, int depth, Decoders& chain) {
  if (depth > kMaxDepth) node.unsupported("a Sequence nested this deep");
  const std::string type = type_of(node);
  const auto add = [&](auto decoder) { chain.push_back(std::move(decoder)); };
  if (type == "Sequence") {
    for (const JsonNode& item : node.at("decoders").items())
      append_decoders(item, depth + 1, chain);
  } else if (type == "ByteLevel") {
    add(std::make_unique<ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    add(std::make_unique<ByteFallbackDecoder>());
  } else if (type == "Fuse") {
    add(std::make_unique<FuseDecoder>());
  } else if (type == "Strip") {
    add(std::make_unique<StripDecoder>(character_of(node.at("content")), count_of(node.at("start")),
                                       count_of(node.at("stop"))));
  } else if (type == "Replace") {
    add(std::make_unique<ReplaceDecoder>(node));
  } else if (type == "Metaspace") {
    const auto scheme = node.find("prepend_scheme");
    const bool drops_first =
        scheme ? scheme->as_string() != "never" : node.bool_or("add_prefix_space", true);
    add(std::make_unique<MetaspaceDecoder>(character_of(node.at("replacement")), drops_first));
  } else if (type == "BPEDecoder") {
    const JsonNode suffix = node.at("suffix");
    if (suffix.as_string().empty()) suffix.unsupported("an empty suffix");
    add(std::make_unique<SuffixDecoder>(suffix.as_string()));
  } else {
    node.unsupported(fmt::format("the decoder `{}`", type));
  }
}

}  // namespace

Decoders load_decoders(const JsonNode& node) {
  Decoders chain;
  append_decoders(node, 0, chain);
  return chain;
}

}  // namespace anabatic::io::tokenizer
