// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <chrono>
#include <map>
#include <string>

#include "anabatic/version.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "report/page.h"
#include "report/run_files.h"

namespace anabatic::report {
namespace {

std::int64_t now_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Runs of one name are distinguished by their paths.
void set_names_apart(OrderedJson& runs) {
  std::map<std::string, int> counts;
  for (const OrderedJson& run : runs) ++counts[run["name"].get<std::string>()];
  for (OrderedJson& run : runs)
    if (counts[run["name"].get<std::string>()] > 1) run["name"] = run["path"];
}

}  // namespace

std::filesystem::path file_of(const std::filesystem::path& run) { return run / "report.html"; }

void write_report(const std::vector<std::filesystem::path>& directories,
                  const std::filesystem::path& output) {
  ANABATIC_REQUIRE(!directories.empty(), "[report] expected a run's directory, got none");
  OrderedJson runs = OrderedJson::array();
  for (const std::filesystem::path& directory : directories) runs.push_back(read_run(directory));
  set_names_apart(runs);
  std::string title;
  for (const OrderedJson& run : runs)
    title += (title.empty() ? "" : ", ") + run["name"].get<std::string>();
  const OrderedJson data{
      {"version", kVersion}, {"made_milliseconds", now_milliseconds()}, {"runs", std::move(runs)}};
  write_file_atomically(output, page(title + " - anabatic report", data));
}

}  // namespace anabatic::report
