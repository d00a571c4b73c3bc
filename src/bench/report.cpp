// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "train/ranks/planned_exchanges.h"

namespace anabatic::bench {
namespace {

std::string row_line(std::string_view name, const ProfileRow& row, double step_seconds) {
  return fmt::format(
      "{:<32} {:>6.0f} {:>9.3f} {:>6.2f}% {:>9.1f} {:>8.2f} {:>7.1f}% {:>8.1f}% {:>11}\n", name,
      row.calls, 1e3 * row.seconds, 100 * row.seconds / step_seconds, 1e-9 * row.flops_per_second(),
      1e-9 * row.bytes_per_second(), 100 * row.roof_share(), 100 * row.imbalance,
      format_bytes(static_cast<std::int64_t>(row.bytes)));
}

std::string section(std::string_view title, const std::vector<ProfileRow>& rows,
                    const Profile& profile) {
  std::string out =
      fmt::format("\n{:<32} {:>6} {:>9} {:>7} {:>9} {:>8} {:>8} {:>9} {:>11}\n", title, "calls",
                  "ms", "share", "GFLOP/s", "GB/s", "roof", "imbalance", "bytes");
  double calls = 0;
  for (const ProfileRow& row : rows) {
    out += row_line(row.name, row, profile.step_seconds);
    calls += row.calls;
  }
  out += fmt::format("{:<32} {:>6} {:>9.3f} {:>6.2f}%\n", "outside kernels", "",
                     1e3 * profile.outside_seconds,
                     100 * profile.outside_seconds / profile.step_seconds);
  return out + fmt::format("{:<32} {:>6.0f} {:>9.3f} {:>6.2f}%\n", "step", calls,
                           1e3 * profile.step_seconds, 100.0);
}

std::string exchange_line(const ProfiledExchange& row) {
  return fmt::format("{:<44} {:<14} {:>5.0f} {:>9.3f} {:>9.3f} {:>10.3f} {:>7.2f}\n", row.name,
                     row.kind, row.count, 1e-6 * row.sent_bytes, 1e3 * row.busy_seconds,
                     1e3 * row.exposed_seconds, 1e-9 * row.bytes_per_second());
}

// One line for exchanges that differ in their layer alone.
std::string exchanges_to_string(const Profile& profile) {
  if (profile.exchanges.empty()) return "";
  std::vector<ProfiledExchange> rows;
  ProfiledExchange all{.name = "all"};
  const auto add = [](ProfiledExchange& sum, const ProfiledExchange& row) {
    sum.count += row.count;
    sum.sent_bytes += row.sent_bytes;
    sum.busy_seconds += row.busy_seconds;
    sum.exposed_seconds += row.exposed_seconds;
  };
  for (const ProfiledExchange& exchange : profile.exchanges) {
    const std::string name = train::over_layers(exchange.name);
    auto row = std::ranges::find_if(rows, [&](const ProfiledExchange& known) {
      return known.name == name && known.kind == exchange.kind;
    });
    if (row == rows.end()) row = rows.insert(row, {.name = name, .kind = exchange.kind});
    add(*row, exchange);
    add(all, exchange);
  }
  std::string out =
      fmt::format("\n{:<44} {:<14} {:>5} {:>9} {:>9} {:>10} {:>7}\n",
                  fmt::format("exchange, at the first of {} ranks", profile.num_ranks), "", "calls",
                  "MB sent", "busy ms", "exposed ms", "GB/s");
  for (const ProfiledExchange& row : rows) out += exchange_line(row);
  return out + exchange_line(all);
}

// "83.1%", or "-" where the share means nothing.
std::string share_text(double amount, double value) {
  return amount > 0 ? fmt::format("{:.1f}%", 100 * value) : "-";
}

}  // namespace

std::string to_table(const Profile& profile) {
  std::string out = fmt::format(
      "{} in {}, {} threads on {}, {} tokens a step{}\n"
      "step  {:.4f} s (mean of {} after {} of warm-up; median {:.4f}), {:.0f} tokens/s, MFU "
      "{:.1f}%\n"
      "peak  fp32 {:.1f} GFLOP/s, bf16 {:.1f} GFLOP/s, copy {:.2f} GB/s (medians between steps)\n",
      profile.model_type, profile.precision, profile.num_threads, profile.cpu, profile.tokens,
      profile.has_data ? "" : " (random)", profile.step_seconds, profile.num_steps,
      profile.num_warmup_steps, profile.median_step_seconds,
      static_cast<double>(profile.tokens) / profile.step_seconds, 100 * profile.mfu(),
      1e-9 * profile.fp32_flops_per_second, 1e-9 * profile.bf16_flops_per_second,
      1e-9 * profile.copy_bytes_per_second);
  if (profile.disk_bytes > 0)
    out += fmt::format(
        "disk  {:.2f} GB moved a step at {:.2f} GB/s, which takes {:.3f} s; the step waited {:.3f} "
        "s for it\n",
        1e-9 * profile.disk_bytes, 1e-9 * profile.disk_bytes / profile.disk_seconds,
        profile.disk_seconds, profile.disk_waited_seconds);
  out += exchanges_to_string(profile);
  out += section("op", profile.by_op, profile);
  out += section("segment", profile.by_segment, profile);
  out += section("phase", profile.by_phase, profile);
  return out +
         "roof: share of the speed that the peak or the copy bandwidth allows; imbalance: share of "
         "the threads' time that they wait for the slowest\n";
}

std::string to_table(const Result& result) {
  std::string out =
      fmt::format("{} in {}, {} threads on {}{}\n", result.kind, result.precision,
                  result.num_threads, result.cpu, result.accumulate ? ", gradients added to" : "");
  if (result.has_cpu_time) out += "  in CPU time of the thread\n";
  for (const auto& [name, value] : result.settings.in_effect())
    out += fmt::format("  --{} {}", name, value);
  out += fmt::format("\npeak {:.1f} GFLOP/s, copy {:.2f} GB/s, medians of {} rounds; arenas {}\n",
                     1e-9 * result.peak_flops_per_second, 1e-9 * result.copy_bytes_per_second,
                     result.num_rounds, format_bytes(result.arena_bytes));
  for (const Check& check : result.checks)
    out += fmt::format(
        "equal to the reference within its bound on {} tokens: largest relative error {:.2g} ({}), "
        "bound {:.2g}\n",
        check.tokens, check.error, check.tensor, check.bound);
  constexpr std::size_t kName = 16;
  std::size_t width = kName;
  for (const PartResult& part : result.parts) width = std::max(width, part.part.name.size());
  out += fmt::format("{:<{}} {:>10} {:>10} {:>8} {:>9} {:>8}\n", "part", width, "ms", "GFLOP/s",
                     "of peak", "GB/s", "of copy");
  for (const PartResult& part : result.parts)
    out += fmt::format(
        "{:<{}} {:>10.4f} {:>10.1f} {:>8} {:>9.2f} {:>8}{}\n", part.part.name, width,
        1e3 * part.seconds, 1e-9 * part.part.flops / part.seconds,
        share_text(part.part.flops, part.peak_share), 1e-9 * part.part.bytes / part.seconds,
        share_text(part.part.bytes, part.copy_share),
        part.part.of.empty() ? "" : fmt::format("  {:.3f} x {}", part.ratio, part.part.of));
  return out;
}

std::string to_table(const ExchangeResult& result) {
  std::string out = fmt::format(
      "exchanges of {} ranks, {}; medians of {} rounds\n"
      "copy {:.2f} GB/s a rank while all copy (read + written){}\n"
      "{:<16} {:>6} {:>12} {:>10} {:>10} {:>12} {:>8}\n",
      result.num_ranks, result.ranks_are, result.num_rounds, 1e-9 * result.copy_bytes_per_second,
      result.is_checked ? "; all outputs are as expected" : "", "exchange", "MiB", "ordered GB/s",
      "mpi GB/s", "MPI GB/s", "ordered/MPI", "of copy");
  for (const ExchangeRow& row : result.rows) {
    const bool has_mpi = row.mpi_seconds > 0;
    out += fmt::format(
        "{:<16} {:>6} {:>12.2f} {:>10} {:>10} {:>12} {:>7.1f}%\n", row.name, row.bytes >> 20,
        1e-9 * row.received_bytes / row.seconds,
        has_mpi ? fmt::format("{:.2f}", 1e-9 * row.received_bytes / row.method_seconds) : "-",
        has_mpi ? fmt::format("{:.2f}", 1e-9 * row.received_bytes / row.mpi_seconds) : "-",
        has_mpi ? fmt::format("{:.2f}", row.ratio) : "-", 100 * row.copy_share);
  }
  return out +
         "GB/s: what a rank receives; ordered and mpi: methods of a run; MPI: its blocking call; "
         "of "
         "copy: share of the speed of a copy that reads and writes "
         "no more than the exchange has to\n";
}

}  // namespace anabatic::bench
