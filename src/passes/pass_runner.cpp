// SPDX-License-Identifier: Apache-2.0
#include "passes/pass_runner.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace anabatic::passes {

const ir::OpSchema* PassContext::find_product(const spec::ProductForm& form) const {
  const std::string_view name = spec::product_like(form).op;
  const ir::OpSchema* op = find_op(name);
  ANABATIC_CHECK(op != nullptr, "[passes] expected the op '{}', found none", name);
  return op;
}

namespace {

using ir::Graph;

void check_disabled(std::span<const Pass> passes, const RunnerOptions& options) {
  std::vector<std::string> names;
  for (const Pass& pass : passes) {
    names.emplace_back(pass.name);
    ANABATIC_REQUIRE(!pass.required || options.disabled.count(pass.name) == 0,
                     "[passes] expected an optional pass to disable, got '{}', which is required",
                     pass.name);
  }
  for (const std::string& name : options.disabled) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const auto nearest = nearest_word(name, names);
    throw InvalidArgument(fmt::format("[passes] expected the name of a pass to disable, got '{}'{}",
                                      name,
                                      nearest ? fmt::format("; nearest: '{}'", *nearest) : ""));
  }
}

class Runner {
 public:
  Runner(Graph& graph, std::span<const Pass> passes, const PassContext& context,
         const RunnerOptions& options)
      : graph_(graph),
        passes_(passes),
        context_(context),
        options_(options),
        facts_(options.facts.begin(), options.facts.end()) {}

  std::vector<PassReport> run() {
    if (options_.checks) check_disabled(passes_, options_);
    create_dump_directory();
    dump("input");
    if (options_.checks) {
      verify_after("the input");
      hash_ = ir::hash(graph_);
    }
    std::vector<PassReport> reports;
    for (const Pass& pass : passes_) {
      ++number_;
      if (options_.disabled.count(pass.name) == 1) {
        reports.push_back({.name = std::string(pass.name), .skipped = true});
      } else if (pass.of_decisions && context_.options.decisions == nullptr) {
        reports.push_back({.name = std::string(pass.name)});
      } else {
        reports.push_back(run_one(pass));
      }
    }
    return reports;
  }

 private:
  PassReport run_one(const Pass& pass) {
    if (options_.checks) check_needs(pass);
    const bool changed = pass.run(graph_, context_);
    dump(pass.name);
    if (options_.checks) check_after(pass, changed);
    for (const std::string_view fact : pass.breaks) facts_.erase(std::string(fact));
    facts_.insert(pass.establishes.begin(), pass.establishes.end());
    return {.name = std::string(pass.name), .changed = changed};
  }

  void check_after(const Pass& pass, bool changed) {
    const std::uint64_t new_hash = ir::hash(graph_);
    if (changed != (new_hash != hash_)) {
      throw InternalError(fmt::format("[passes] {} says that the graph {}, but its hash {}",
                                      pass.name, changed ? "changed" : "is unchanged",
                                      changed ? "is the same" : "differs"));
    }
    hash_ = new_hash;
    if (changed) verify_after(pass.name);
  }

  void check_needs(const Pass& pass) const {
    for (const std::string_view fact : pass.needs) {
      if (facts_.count(fact) == 1) continue;
      for (const Pass& other : passes_) {
        const bool establishes = std::find(other.establishes.begin(), other.establishes.end(),
                                           fact) != other.establishes.end();
        ANABATIC_REQUIRE(
            !establishes || options_.disabled.count(other.name) == 0,
            "[passes] {} needs '{}', which {} establishes, but that pass is disabled; disable "
            "neither or both",
            pass.name, fact, other.name);
      }
      throw InternalError(
          fmt::format("[passes] {} needs '{}', which is not established here", pass.name, fact));
    }
  }

  void verify_after(std::string_view what) const {
    try {
      ir::verify(graph_);
    } catch (const InternalError& error) {
      throw InternalError(fmt::format("[passes] after {}: {}{}", what, error.what(),
                                      last_dump_.empty() ? "" : "; see " + last_dump_));
    }
  }

  void create_dump_directory() const {
    if (options_.dump_directory.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(options_.dump_directory, error);
    if (error) {
      throw ResourceError(
          fmt::format("[passes] cannot create {}: {}", options_.dump_directory, error.message()));
    }
  }

  void dump(std::string_view name) {
    if (options_.dump_directory.empty()) return;
    last_dump_ = fmt::format("{}/{:02}_{}.ir", options_.dump_directory, number_, name);
    write_file_atomically(last_dump_, ir::print(graph_));
  }

  Graph& graph_;
  std::span<const Pass> passes_;
  const PassContext& context_;
  const RunnerOptions& options_;
  std::set<std::string, std::less<>> facts_;
  std::uint64_t hash_ = 0;
  int number_ = 0;
  std::string last_dump_;
};

}  // namespace

std::vector<PassReport> run_passes(Graph& graph, std::span<const Pass> passes,
                                   const PassContext& context, const RunnerOptions& options) {
  return Runner(graph, passes, context, options).run();
}

}  // namespace anabatic::passes
