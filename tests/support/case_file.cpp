// SPDX-License-Identifier: Apache-2.0
#include "support/case_file.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::testing {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// "f32[7]:experts(8,skewed)"
CaseOperand parse_operand(const std::string& text) {
  CaseOperand operand;
  const auto colon = text.find(':');
  operand.type = text.substr(0, colon);
  if (colon == std::string::npos) return operand;
  const std::string recipe = text.substr(colon + 1);
  const auto open = recipe.find('(');
  operand.recipe = recipe.substr(0, open);
  if (open == std::string::npos) return operand;
  ANABATIC_REQUIRE(recipe.back() == ')', "expected RECIPE(OPTIONS), got '{}'", recipe);
  operand.options = split(recipe.substr(open + 1, recipe.size() - open - 2), ',');
  return operand;
}

std::vector<int> parse_indices(const std::vector<std::string>& list) {
  std::vector<int> result;
  for (std::size_t i = 1; i < list.size(); ++i) result.push_back(std::stoi(list[i]));
  return result;
}

void parse_directive(const std::string& text, CaseFile& file) {
  const std::vector<std::string> list = words(text);
  const std::string& word = list[0];
  if (word == "@exact")
    file.exact_outputs = parse_indices(list);
  else if (word == "@always_exact")
    file.always_exact = parse_indices(list);
  else if (word == "@skips" && list.size() == 2)
    file.num_skips = std::stoi(list[1]);
  else if (word == "@attributes")
    file.attributes = text.substr(word.size());
  else
    throw InvalidArgument(fmt::format("unknown directive '{}'", text));
}

void parse_flag(const std::string& flag, CaseLine& line) {
  if (flag == "zeros")
    line.zeros_expected = true;
  else if (flag == "exact")
    line.bounded = false;
  else if (flag == "bounded")
    line.exact = false;
  else if (flag.rfind("dtypes=", 0) == 0)
    line.dtypes = split(flag.substr(7), ',');
  else
    throw InvalidArgument(fmt::format("unknown flag '{}'", flag));
}

bool names_dtype(const CaseLine& line) {
  const auto is_d = [](const std::string& type) { return type[0] == 'D'; };
  return std::any_of(line.outputs.begin(), line.outputs.end(), is_d) ||
         std::any_of(line.inputs.begin(), line.inputs.end(),
                     [&](const CaseOperand& operand) { return is_d(operand.type); });
}

// Rows for f16 share nearly all of their code with those for f32, so every other line is enough.
CaseLine parse_line(const std::string& text, int number) {
  CaseLine line{.line = number};
  const std::vector<std::string> parts = split(text, '|');
  const auto arrow = parts[0].find("->");
  ANABATIC_REQUIRE(arrow != std::string::npos && parts.size() <= 3,
                   "expected INPUTS -> OUTPUTS | ATTRIBUTES | FLAGS, got '{}'", text);
  for (const std::string& word : words(parts[0].substr(0, arrow)))
    line.inputs.push_back(parse_operand(word));
  line.outputs = words(parts[0].substr(arrow + 2));
  ANABATIC_REQUIRE(!line.outputs.empty(), "expected an output after '->' in '{}'", text);
  if (parts.size() > 1) line.attributes = parts[1];
  if (parts.size() > 2)
    for (const std::string& flag : words(parts[2])) parse_flag(flag, line);
  if (!names_dtype(line))
    line.dtypes = {""};
  else if (line.dtypes.empty())
    line.dtypes = number % 2 == 0 ? std::vector<std::string>{"f32", "bf16", "f16"}
                                  : std::vector<std::string>{"f32", "bf16"};
  return line;
}

}  // namespace

CaseFile read_case_file(const std::filesystem::path& path) {
  CaseFile file{.op = path.stem().string()};
  const std::vector<std::string> lines = split(read_file(path), '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& text = lines[i];
    if (words(text).empty() || text[0] == '#') continue;
    try {
      if (text[0] == '@') {
        parse_directive(text, file);
        continue;
      }
      CaseLine line = parse_line(text, static_cast<int>(i + 1));
      line.attributes = file.attributes + " " + line.attributes;  // the later one of a key counts
      file.cases.push_back(std::move(line));
    } catch (const std::exception& error) {
      throw InvalidArgument(
          fmt::format("[case file] {}:{}: {}", path.filename().string(), i + 1, error.what()));
    }
  }
  return file;
}

std::string replace_dtype(const std::string& text, const std::string& dtype) {
  if (text[0] == 'D') return dtype + text.substr(1);
  const auto quoted = text.find("\"D");
  return quoted == std::string::npos ? text
                                     : text.substr(0, quoted + 1) + dtype + text.substr(quoted + 2);
}

spec::Attributes parse_attributes(const std::string& text, const std::string& dtype) {
  spec::Attributes attributes;
  for (const std::string& word : words(text)) {
    const auto equals = word.find('=');
    ANABATIC_REQUIRE(equals != std::string::npos, "[case file] expected KEY=VALUE, got '{}'", word);
    attributes[word.substr(0, equals)] =
        spec::parse_attribute(replace_dtype(word.substr(equals + 1), dtype));
  }
  return attributes;
}

}  // namespace anabatic::testing
