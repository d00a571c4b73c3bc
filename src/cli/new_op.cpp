// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/new_op/embedded_file.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "plugin/plugin_op.h"

namespace anabatic::cli {
namespace {

namespace fs = std::filesystem;

struct Language {
  std::string_view name, cmake_name, standard;
};
constexpr std::array kLanguages{Language{"c", "C", "99"}, Language{"cpp", "CXX", "17"}};

const Language& language_of(const Invocation& invocation) {
  const std::string name = invocation.has("--language") ? invocation.value("--language") : "c";
  for (const Language& language : kLanguages)
    if (language.name == name) return language;
  throw InvalidArgument(fmt::format("[new-op] --language: expected c or cpp, got '{}'", name));
}

std::string name_of(const Invocation& invocation) {
  const std::string& name = invocation.positionals.at(0);
  ANABATIC_REQUIRE(plugin::is_plugin_name(name),
                   "[new-op] NAME: expected lower case letters, digits and _, not beginning with a "
                   "digit and at most 64, got '{}'",
                   name);
  const std::string meaning = plugin::meaning_in_engine(name);
  ANABATIC_REQUIRE(meaning.empty(), "[new-op] NAME: expected a new name: {}", meaning);
  return name;
}

std::string filled(std::string_view text, const std::string& name, const Language& language) {
  const std::array<std::pair<std::string_view, std::string>, 4> marks{
      {{"@NAME@", name},
       {"@SOURCE@", fmt::format("{}.{}", name, language.name)},
       {"@LANGUAGE@", std::string(language.cmake_name)},
       {"@STANDARD@", std::string(language.standard)}}};
  std::string result(text);
  for (const auto& [mark, value] : marks)
    for (std::size_t at = 0; (at = result.find(mark, at)) != std::string::npos; at += value.size())
      result.replace(at, mark.size(), value);
  return result;
}

// Where a file of the project comes to; empty for the source in the other language.
fs::path place_of(std::string_view file, const std::string& name, const Language& language) {
  if (file == "plugin.h") return fs::path("include") / "anabatic" / file;
  const std::string_view target = file.substr(0, file.size() - std::string_view(".in").size());
  if (!target.starts_with("op.")) return target;
  return target == fmt::format("op.{}", language.name) ? fmt::format("{}.{}", name, language.name)
                                                       : "";
}

// Removes a folder, unless it has got another name meanwhile.
struct RemovedAtEnd {
  fs::path folder;
  ~RemovedAtEnd() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
};

// The project as a whole, or nothing of it: it is written next to its place, and then renamed.
void write_project(const fs::path& directory, const std::string& name, const Language& language) {
  const fs::path temporary =
      directory.parent_path() / fmt::format(".{}.{}", directory.filename().string(), ::getpid());
  ANABATIC_REQUIRE(fs::create_directory(temporary), "[new-op] expected no {}, which is in the way",
                   temporary.string());
  const RemovedAtEnd removed{temporary};
  for (const EmbeddedFile& file : new_op_files()) {
    const fs::path place = place_of(file.name, name, language);
    if (place.empty()) continue;
    fs::create_directories((temporary / place).parent_path());
    write_file_atomically(temporary / place, file.name == "plugin.h"
                                                 ? std::string(file.text)
                                                 : filled(file.text, name, language));
  }
  fs::rename(temporary, directory);
}

int run_new_op(const Invocation& invocation) {
  const std::string name = name_of(invocation);
  const Language& language = language_of(invocation);
  const std::string given = invocation.has("--directory") ? invocation.value("--directory") : name;
  fs::path directory = fs::absolute(given).lexically_normal();
  if (directory.filename().empty()) directory = directory.parent_path();  // of "folder/"
  ANABATIC_REQUIRE(!fs::exists(fs::symlink_status(directory)),
                   "[new-op] expected a new folder, but {} exists", given);
  ANABATIC_REQUIRE(fs::is_directory(directory.parent_path()),
                   "[new-op] expected a new folder in one that exists, but {} is none",
                   directory.parent_path().string());
  try {
    write_project(directory, name, language);
  } catch (const fs::filesystem_error& error) {
    throw ResourceError(fmt::format("[new-op] cannot write {}: {}", given, error.code().message()));
  }
  print_output(
      "wrote {0}\n"
      "next: cd {0} && cmake -B build && cmake --build build && ctest --test-dir build "
      "--output-on-failure\n",
      given);
  return 0;
}

}  // namespace

const Verb& new_op_verb() {
  static const Verb verb{
      "new-op",
      "write a project for an operator of your own: C or C++, with a test that check-op passes",
      "NAME",
      {{.name = "--language", .help = "c, the default, or cpp", .value = "LANGUAGE"},
       {.name = "--directory",
        .help = "folder to write, which must not exist; default NAME",
        .value = "DIR"}},
      false,
      run_new_op};
  return verb;
}

}  // namespace anabatic::cli
