// SPDX-License-Identifier: Apache-2.0
#include "io/json_lines.h"

#include <fmt/core.h>

#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace anabatic::io {
namespace {

// Bytes up to and including the last "\n".
std::int64_t whole_lines_bytes(const File& file) {
  std::int64_t end = file.size();
  std::string block(std::size_t{1} << 16, '\0');
  while (end > 0) {
    const std::int64_t begin =
        std::max<std::int64_t>(0, end - static_cast<std::int64_t>(block.size()));
    const auto bytes = std::span(block).first(static_cast<std::size_t>(end - begin));
    file.read_at(begin, std::as_writable_bytes(bytes));
    const std::size_t newline = std::string_view(bytes.data(), bytes.size()).rfind('\n');
    if (newline != std::string_view::npos) return begin + static_cast<std::int64_t>(newline) + 1;
    end = begin;
  }
  return 0;
}

// None for what is no object with an integer step.
std::optional<std::int64_t> step_of(const Json& object) {
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::filesystem::path& path) : file_(File::append(path)) {
  const std::int64_t keep = whole_lines_bytes(file_);
  if (keep != file_.size()) file_.resize(keep);
}

void JsonLinesWriter::write(const nlohmann::ordered_json& object) {
  const std::string line = show_json(object) + "\n";
  file_.write(std::as_bytes(std::span(line)));
}

void keep_steps(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  const std::string content = read_file(path, std::int64_t{1} << 40);
  std::string kept;
  std::string_view rest = content;
  while (true) {
    const std::size_t newline = rest.find('\n');
    if (newline == std::string_view::npos) break;
    const std::string_view line = rest.substr(0, newline + 1);
    rest.remove_prefix(newline + 1);
    const std::optional<std::int64_t> step = step_of(try_parse_json(line));
    if (step && *step <= last_step) kept.append(line);
  }
  if (kept != content) write_file_atomically(path, kept);
}

std::int64_t visit_steps(const std::filesystem::path& path,
                         const std::function<void(std::int64_t, const Json&)>& visit) {
  if (!std::filesystem::exists(path)) return 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ResourceError(fmt::format("{}: cannot be read", path.string()));
  std::int64_t num_others = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Json object = try_parse_json(line);
    if (const std::optional<std::int64_t> step = step_of(object))
      visit(*step, object);
    else
      ++num_others;
  }
  return num_others;
}

}  // namespace anabatic::io
