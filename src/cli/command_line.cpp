// SPDX-License-Identifier: Apache-2.0
// Parses for the verb and turns errors into one message and an exit code.
#include "anabatic/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>

#include "anabatic/version.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "device/memory.h"
#include "plan/budget_error.h"
#include "train/config/key_verbs.h"

namespace anabatic::cli {
namespace {

constexpr int kUsageError = 2;
constexpr int kBudgetError = 3;  // memory.budget cannot be kept; found before the first step

// How many values an option takes: a list all that follow, any other one; the last one counts.
void set_values(CLI::Option& option, bool is_list) {
  if (is_list) {
    option.expected(1, -1);
  } else {
    option.expected(1)->allow_extra_args(false)->multi_option_policy(
        CLI::MultiOptionPolicy::TakeLast);
  }
}

std::size_t num_words(std::string_view text) {
  return 1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), ' '));
}

// Where CLI11 puts what it parses for one verb.
struct Parsed {
  const Verb* verb = nullptr;
  CLI::App* app = nullptr;
  std::vector<std::string> positionals;
  std::map<std::string, std::vector<std::string>> values;  // of options, by name
  std::map<std::string, std::vector<std::string>> key_values;
};

void add_config_keys(Parsed& parsed) {
  for (const train::ConfigKey& key : train::config_keys()) {
    if (!train::reads_key(parsed.verb->name, key.name)) continue;
    std::string flag = "--" + key.name;
    if (const std::string_view alias = alias_of(key.name); !alias.empty())
      flag += fmt::format(",{}", alias);
    set_values(*parsed.app->add_option(flag, parsed.key_values[key.name]), key.is_list);
  }
}

void add_verb(CLI::App& app, const Verb& verb, Parsed& parsed) {
  parsed.verb = &verb;
  parsed.app = app.add_subcommand(std::string(verb.name));
  parsed.app->allow_extras();
  if (!verb.positional.empty()) {
    const bool optional = verb.positional.back() == '?', is_list = verb.positional.ends_with("...");
    const std::size_t mark = optional ? 1 : is_list ? 3 : 0;
    CLI::Option* option = parsed.app->add_option(
        std::string(verb.positional.substr(0, verb.positional.size() - mark)), parsed.positionals);
    if (is_list)
      option->expected(1, -1);
    else
      option->expected(static_cast<int>(num_words(verb.positional)))->allow_extra_args(false);
    if (!optional) option->required();
  }
  for (const VerbOption& wanted : verb.options) {
    const std::string name(wanted.name);
    if (wanted.is_flag) {
      parsed.app->add_flag_callback(name, [&parsed, name] { parsed.values[name] = {"true"}; });
      continue;
    }
    CLI::Option* option = parsed.app->add_option(name, parsed.values[name]);
    set_values(*option, wanted.is_list);
    if (wanted.required) option->required();
  }
  if (verb.takes_config_keys) add_config_keys(parsed);
}

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// "[a, b]" in one argument, as YAML writes lists.
std::vector<std::string> split_brackets(std::vector<std::string> values) {
  if (values.size() > 1)  // of a list whose brackets the parser has taken
    for (std::string& value : values) value = trimmed(value);
  if (values.size() != 1 || values[0].size() < 2 || values[0].front() != '[' ||
      values[0].back() != ']')
    return values;
  // A comma within braces belongs to a map.
  std::vector<std::string> items{""};
  int depth = 0;
  for (const char c : values[0].substr(1, values[0].size() - 2)) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (c == ',' && depth == 0)
      items.emplace_back();
    else
      items.back() += c;
  }
  for (std::string& item : items) item = trimmed(std::move(item));
  if (items.back().empty()) items.pop_back();
  return items;
}

Invocation to_invocation(const Parsed& parsed, const PlainArguments& arguments) {
  const auto extras = parsed.app->remaining();
  ANABATIC_REQUIRE(extras.empty(), "[{}] unexpected argument '{}'", parsed.verb->name,
                   extras.front());
  Invocation invocation{.positionals = parsed.positionals};
  for (const auto& [name, values] : parsed.values)
    if (!values.empty()) invocation.options[name] = values;
  if (!parsed.verb->takes_config_keys) return invocation;
  for (const train::ConfigKey& key : train::config_keys()) {
    if (!train::reads_key(parsed.verb->name, key.name)) continue;
    const CLI::Option* option = parsed.app->get_option("--" + key.name);
    if (option->count() == 0) continue;
    const std::vector<std::string>& values = parsed.key_values.at(key.name);
    invocation.overrides[key.name] = key.is_list ? split_brackets(values) : values;
  }
  // Arguments that look like keys go to the config, which reports them with all other problems.
  for (const auto& [flag, values] : arguments.unknown)
    invocation.overrides[flag.substr(2)] = values;
  return invocation;
}

// Checks the verb and separates unknown flags, so that a typo is reported before its consequences.
PlainArguments plain_arguments(std::vector<std::string> arguments) {
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "--version")
    return {.known = std::move(arguments)};
  const Verb& verb = find_verb(arguments[0]);
  PlainArguments plain = make_plain(verb, std::span(arguments).subspan(1));
  plain.known.insert(plain.known.begin(), arguments[0]);
  reject_unread_keys(verb, plain);
  for (const auto& [flag, values] : plain.unknown)
    if (!verb.takes_config_keys || flag.find('.') == std::string::npos) reject_unknown(verb, plain);
  return plain;
}

int run_verb(const std::vector<std::string>& words) {
  if (words.empty()) {
    print_output("{}", overview());
    return 0;
  }
  CLI::App app;
  app.set_version_flag("--version", std::string("anabatic ") + kVersion);
  app.require_subcommand(1);
  std::vector<Parsed> parsed(all_verbs().size());
  for (std::size_t i = 0; i < parsed.size(); ++i) add_verb(app, *all_verbs()[i], parsed[i]);
  const PlainArguments arguments = plain_arguments(words);
  const std::string& first = arguments.known.at(0);
  try {
    app.parse(std::vector<std::string>(arguments.known.rbegin(), arguments.known.rend()));
  } catch (const CLI::CallForHelp&) {
    print_output("{}", first.starts_with("-") ? overview() : help_of(find_verb(first)));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    print_output("{}\n", version.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    if (!arguments.unknown.empty()) reject_unknown(find_verb(first), arguments);
    throw InvalidArgument(fmt::format("[{0}] {1}; `anabatic {0} --help` lists its options and keys",
                                      first, error.what()));
  }
  for (const Parsed& p : parsed)
    if (p.app->parsed()) return p.verb->run(to_invocation(p, arguments));
  return kUsageError;
}

}  // namespace
}  // namespace anabatic::cli

namespace anabatic {

int run_command_line(const std::vector<std::string>& arguments) {
  cli::prepare_standard_streams();
  device::return_freed_memory();
  set_log_sink(cli::print_message);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write
  try {
    const int exit_code = cli::run_verb(arguments);
    cli::finish_output();
    return exit_code;
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return cli::kUsageError;
  } catch (const plan::BudgetError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return cli::kBudgetError;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "error: [memory] expected more memory, got none from the system; a smaller "
                 "memory.budget makes a run take less (anabatic plan predicts how much)\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace anabatic
