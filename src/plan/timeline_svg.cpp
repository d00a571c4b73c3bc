// SPDX-License-Identifier: Apache-2.0
#include "plan/timeline_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "plan/account.h"

namespace anabatic::plan {
namespace {

using BytesByUse = std::array<std::int64_t, kNumUses>;

constexpr double kLeft = 90, kTop = 60, kWidth = 800, kHeight = 380, kLegend = 210;
constexpr std::size_t kMostColumns = 800;

// Bottom to top; slack is what stays white below the line of the planned peak.
struct Band {
  Use use;
  const char* colour;
};
constexpr std::array<Band, 10> kBands{{{Use::kParameters, "#1f4e79"},
                                       {Use::kPackings, "#2e86c1"},
                                       {Use::kOptimizer, "#85c1e9"},
                                       {Use::kMasks, "#a569bd"},
                                       {Use::kCaches, "#5d6d7e"},
                                       {Use::kGradients, "#b03a2e"},
                                       {Use::kInputs, "#7d6608"},
                                       {Use::kSaved, "#1e8449"},
                                       {Use::kScratch, "#f1c40f"},
                                       {Use::kWorkspace, "#e67e22"}}};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

std::string label(double x, double y, const char* anchor, std::string_view text,
                  const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped(text));
}

// 1, 2 or 5 times a power of ten, in the unit that `most` reads in.
struct Scale {
  double unit = 1, step = 1;
  const char* name = "bytes";
};

Scale scale_of(double most) {
  Scale scale;
  for (const char* name : {"KiB", "MiB", "GiB", "TiB"}) {
    if (most / scale.unit < 1024) break;
    scale.unit *= 1024;
    scale.name = name;
  }
  const double rough = std::max(most / scale.unit / 6, 1e-9);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  scale.step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  return scale;
}

class Picture {
 public:
  Picture(const ir::Graph& graph, const Plan& plan)
      : plan_(plan), account_(make_account(graph, plan)), rows_(timeline(graph, plan)) {
    shrink(rows_.size());
    most_ = static_cast<double>(std::max<std::int64_t>(plan.peak_bytes(), 1));
  }

  std::string draw(const std::string& title) const {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kLeft + kWidth + kLegend, kTop + kHeight + 80);
    out += fmt::format("<title>{}</title>\n", escaped(title));
    out += label(kLeft, 24, "start", title, " font-size=\"16\" font-weight=\"bold\"");
    out += label(
        kLeft, 44, "start",
        fmt::format("planned peak {}; most in use at call {}: {}",
                    format_bytes(account_.peak_bytes), account_.peak_position, account_.peak_op));
    return out + areas() + axes() + actions() + peak() + legend() + "</svg>\n";
  }

 private:
  // Each column keeps its fullest call.
  void shrink(std::size_t length) {
    const std::size_t columns = std::min(length, kMostColumns);
    std::vector<BytesByUse> kept;
    for (std::size_t c = 0; c < columns; ++c) {
      const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(c * length / columns);
      const auto end = rows_.begin() + static_cast<std::ptrdiff_t>((c + 1) * length / columns);
      kept.push_back(*std::min_element(begin, end, [](const BytesByUse& a, const BytesByUse& b) {
        return a[static_cast<std::size_t>(Use::kSlack)] < b[static_cast<std::size_t>(Use::kSlack)];
      }));
    }
    num_calls_ = length;
    rows_ = std::move(kept);
  }

  double x_of_column(std::size_t column) const {
    return kLeft + kWidth * static_cast<double>(column) / static_cast<double>(rows_.size());
  }
  double x_of_call(std::size_t call) const {
    return kLeft + kWidth * static_cast<double>(call) /
                       static_cast<double>(std::max<std::size_t>(num_calls_, 1));
  }
  double y_of(double bytes) const { return kTop + kHeight * (1 - bytes / most_ / 1.05); }

  std::string areas() const {
    std::string out;
    std::vector<double> below(rows_.size(), 0);
    for (const Band& band : kBands) {
      if (account_uses(band.use) == 0) continue;
      std::string upper, lower;
      for (std::size_t c = 0; c < rows_.size(); ++c) {
        const double bottom = below[c];
        below[c] += static_cast<double>(rows_[c][static_cast<std::size_t>(band.use)]);
        const double left = x_of_column(c), right = x_of_column(c + 1);
        upper += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", left, y_of(below[c]), right,
                             y_of(below[c]));
        lower =
            fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", right, y_of(bottom), left, y_of(bottom)) +
            lower;
      }
      out += fmt::format("<polygon fill=\"{}\" points=\"{}{}\"/>\n", band.colour, upper, lower);
    }
    return out;
  }

  // Most bytes of a use at any call.
  std::int64_t account_uses(Use use) const {
    std::int64_t most = 0;
    for (const BytesByUse& row : rows_) most = std::max(most, row[static_cast<std::size_t>(use)]);
    return most;
  }

  std::string axes() const {
    const Scale scale = scale_of(most_);
    std::string out = fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"black\"/>\n", kLeft,
        kTop, kTop + kHeight, kLeft + kWidth);
    for (int i = 0; i * scale.step * scale.unit <= most_ * 1.05; ++i) {
      const double y = y_of(i * scale.step * scale.unit);
      out += fmt::format("<path d=\"M{:.1f} {:.1f}h-5\" stroke=\"black\"/>\n", kLeft, y);
      out += label(kLeft - 8, y + 4, "end", fmt::format("{:g} {}", i * scale.step, scale.name));
    }
    out +=
        label(kLeft + kWidth / 2, kTop + kHeight + 62, "middle", "calls of a step, in their order");
    return out + fmt::format(
                     "<text transform=\"translate(18 {:.1f}) rotate(-90)\" "
                     "text-anchor=\"middle\">bytes in use</text>\n",
                     kTop + kHeight / 2);
  }

  std::string actions() const {
    std::string out;
    std::size_t begin = 0;
    for (const auto& [action, order] : plan_.orders) {
      const double left = x_of_call(begin), right = x_of_call(begin + order.size());
      out += fmt::format(
          "<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"black\" stroke-dasharray=\"3 3\"/>\n", right,
          kTop, kTop + kHeight + 20);
      out += label((left + right) / 2, kTop + kHeight + 18, "middle", spec::to_string(action));
      out += label((left + right) / 2, kTop + kHeight + 36, "middle",
                   fmt::format("{} calls", order.size()));
      begin += order.size();
    }
    return out;
  }

  std::string peak() const {
    const double y = y_of(most_);
    std::string out = fmt::format(
        "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#333\" stroke-dasharray=\"6 3\"/>\n", kLeft, y,
        kLeft + kWidth);
    if (account_.peak_position >= 0)
      out += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"none\" stroke=\"black\"/>\n",
          (x_of_call(static_cast<std::size_t>(account_.peak_position)) +
           x_of_call(static_cast<std::size_t>(account_.peak_position) + 1)) /
              2,
          y_of(most_ - static_cast<double>(account_.bytes(Use::kSlack))));
    return out;
  }

  std::string legend() const {
    std::string out;
    double y = kTop + 10;
    const double x = kLeft + kWidth + 16;
    for (auto band = kBands.rbegin(); band != kBands.rend(); ++band) {
      const std::int64_t most = account_uses(band->use);
      if (most == 0) continue;
      out +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                      x, y - 10, band->colour);
      out += label(x + 18, y, "start",
                   fmt::format("{}, <= {}", to_string(band->use), format_bytes(most)));
      y += 20;
    }
    return out + label(x, y + 8, "start", "dashed: the planned peak");
  }

  const Plan& plan_;
  Account account_;
  std::vector<BytesByUse> rows_;
  std::size_t num_calls_ = 0;
  double most_ = 1;
};

}  // namespace

std::string timeline_svg(const ir::Graph& graph, const Plan& plan, const std::string& title) {
  return Picture(graph, plan).draw(title);
}

}  // namespace anabatic::plan
