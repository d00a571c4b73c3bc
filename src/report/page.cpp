// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <fmt/core.h>

#include "base/json.h"

namespace anabatic::report {
namespace {

// The page may not load anything, whatever is in a config.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

std::string replaced(std::string_view text, const char* (*replacement)(char)) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (const char* instead = replacement(c))
      out += instead;
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string script_json(const OrderedJson& value) {
  return replaced(show_json(value), [](char c) -> const char* {
    return c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : c == '&' ? "\\u0026" : nullptr;
  });
}

std::string html_text(std::string_view text) {
  return replaced(text, [](char c) -> const char* {
    return c == '<'   ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '&' ? "&amp;"
           : c == '"' ? "&quot;"
                      : nullptr;
  });
}

std::string page(const std::string& title, const OrderedJson& data) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>\n",
      kPolicy, html_text(title));
  out += style();
  out +=
      "</style>\n</head>\n<body>\n<main id=\"main\">\n<noscript>The pictures of this page are "
      "drawn by the scripts that stand in it; they are switched off here.</noscript>\n</main>\n"
      "<script type=\"application/json\" id=\"data\">";
  out += script_json(data);
  out += "</script>\n<script>\n\"use strict\";\n";
  for (const char* script : {draw_script(), charts_script(), page_script()}) out += script;
  return out + "</script>\n</body>\n</html>\n";
}

}  // namespace anabatic::report
