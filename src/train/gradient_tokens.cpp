// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_tokens.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "io/safetensors.h"

namespace anabatic::train {
namespace {

constexpr const char* kNames[] = {"input_ids", "labels", "attention_mask", "position_ids"};

std::vector<std::int64_t> to_ints(const io::TensorEntry& entry) {
  const auto count = static_cast<std::size_t>(entry.num_elements());
  std::vector<std::int64_t> values(count);
  if (entry.dtype_name == "BOOL") {
    for (std::size_t i = 0; i < count; ++i) values[i] = std::to_integer<int>(entry.data[i]);
  } else {
    std::memcpy(values.data(), entry.data.data(), entry.data.size());
  }
  return values;
}

// The tensors of the file as rows [B*S]; collects what is wrong with them.
class TokenReader {
 public:
  explicit TokenReader(const std::filesystem::path& path)
      : path_(path), file_(io::SafetensorsDirectory::open(path)) {
    for (const std::string& name : file_.names()) {
      const bool is_known = std::any_of(std::begin(kNames), std::end(kNames),
                                        [&](const char* known) { return name == known; });
      if (!is_known)
        problem(name,
                "expected only input_ids, labels, attention_mask and position_ids in this file");
    }
    const io::TensorEntry* ids = find("input_ids", true);
    find("labels", true);
    find("attention_mask", false);
    find("position_ids", false);
    if (ids != nullptr && ids->shape.size() == 2) {
      shape_ = ids->shape;
      if (ids->num_elements() == 0) problem("input_ids", "expected at least one token, found none");
      for (const char* name : {"labels", "attention_mask", "position_ids"}) check_shape(name);
    }
    require_no_problems();
  }

  std::int64_t batch() const { return shape_[0]; }
  std::int64_t length() const { return shape_[1]; }
  bool has(const char* name) const { return file_.find(name) != nullptr; }

  // Rows [B*S], also of a tensor [1,S].
  std::vector<std::int64_t> values(const char* name) const {
    std::vector<std::int64_t> row = to_ints(*file_.find(name));
    std::vector<std::int64_t> all = row;
    while (static_cast<std::int64_t>(all.size()) < batch() * length())
      all.insert(all.end(), row.begin(), row.end());
    return all;
  }

  void problem(std::string_view name, const std::string& text) {
    problems_ += fmt::format("\n  {}: {}", name, text);
  }
  void require_no_problems() const {
    ANABATIC_REQUIRE(problems_.empty(), "[gradients] {}:{}", path_.string(), problems_);
  }

 private:
  const io::TensorEntry* find(const char* name, bool is_needed) {
    const io::TensorEntry* entry = file_.find(name);
    const std::string_view kind =
        std::string_view(name) == "attention_mask" ? "int64 or bool" : "int64";
    if (entry == nullptr) {
      if (is_needed) problem(name, "expected an int64 tensor [B,S], found none");
    } else if ((entry->dtype_name != "I64" && (entry->dtype_name != "BOOL" || kind == "int64")) ||
               entry->shape.size() != 2) {
      problem(name, fmt::format("expected {} [B,S], found {} with {} dimensions", kind,
                                entry->dtype_name, entry->shape.size()));
    }
    return entry;
  }

  void check_shape(const char* name) {
    const io::TensorEntry* entry = file_.find(name);
    if (entry == nullptr || entry->shape.size() != 2 || entry->shape == shape_) return;
    const bool is_one_row = std::string_view(name) == "position_ids" && entry->shape[0] == 1 &&
                            entry->shape[1] == shape_[1];
    if (!is_one_row)
      problem(name, fmt::format("expected the shape of input_ids, [{},{}], got [{},{}]", shape_[0],
                                shape_[1], entry->shape[0], entry->shape[1]));
  }

  std::filesystem::path path_;
  io::SafetensorsDirectory file_;
  std::vector<std::int64_t> shape_;
  std::string problems_;
};

struct TokenRows {
  std::vector<std::int64_t> ids, labels, mask, positions;
};

TokenRows read_rows(const TokenReader& reader) {
  const std::int64_t count = reader.batch() * reader.length();
  TokenRows rows{.ids = reader.values("input_ids"), .labels = reader.values("labels")};
  rows.mask.assign(static_cast<std::size_t>(count), 1);
  if (reader.has("attention_mask")) rows.mask = reader.values("attention_mask");
  if (reader.has("position_ids")) {
    rows.positions = reader.values("position_ids");
  } else {
    for (std::int64_t i = 0; i < count; ++i) rows.positions.push_back(i % reader.length());
  }
  return rows;
}

void check_rows(const TokenRows& rows, std::int64_t vocabulary) {
  constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    const std::int64_t label = rows.labels[i];
    ANABATIC_REQUIRE(rows.ids[i] >= 0 && rows.ids[i] < vocabulary,
                     "[gradients] input_ids[{}]: expected an id below {}, got {}", i, vocabulary,
                     rows.ids[i]);
    ANABATIC_REQUIRE(label == io::kIgnoredLabel || (label >= 0 && label < vocabulary),
                     "[gradients] labels[{}]: expected -100 or an id below {}, got {}", i,
                     vocabulary, label);
    ANABATIC_REQUIRE(rows.mask[i] == 0 || rows.mask[i] == 1,
                     "[gradients] attention_mask[{}]: expected 0 or 1, got {}", i, rows.mask[i]);
    ANABATIC_REQUIRE(rows.mask[i] == 1 || label == io::kIgnoredLabel,
                     "[gradients] labels[{}]: expected -100 where attention_mask is 0, got {}", i,
                     label);
    ANABATIC_REQUIRE(
        rows.mask[i] == 0 || (rows.positions[i] >= 0 && rows.positions[i] < kMaxPosition),
        "[gradients] position_ids[{}]: expected a position below {}, got {}", i, kMaxPosition,
        rows.positions[i]);
  }
}

// A table of positions has a row for each.
void check_positions(const TokenRows& rows, std::int64_t learned_positions) {
  for (std::size_t i = 0; i < rows.mask.size(); ++i)
    ANABATIC_REQUIRE(rows.mask[i] == 0 || rows.positions[i] < learned_positions,
                     "[gradients] position_ids[{}]: expected a position below the model's {}, got "
                     "{}",
                     i, learned_positions, rows.positions[i]);
}

// A window counts rows of the file, and padding is left out of the micro-batch.
void check_no_holes(const TokenRows& rows, std::int64_t length) {
  bool has_token = false, has_hole = false;
  for (std::size_t i = 0; i < rows.mask.size(); ++i) {
    if (static_cast<std::int64_t>(i) % length == 0) has_token = has_hole = false;
    has_hole = has_hole || (has_token && rows.mask[i] == 0);
    has_token = has_token || rows.mask[i] == 1;
    ANABATIC_REQUIRE(!(has_hole && rows.mask[i] == 1),
                     "[gradients] attention_mask[{}]: expected padding only before and after the "
                     "tokens of a row, as this model's attention has a window",
                     i);
  }
}

// The angles of a dynamic rope depend on the largest position of all, padding among them.
void check_largest_position(const TokenRows& rows) {
  std::int64_t of_tokens = -1;
  for (std::size_t i = 0; i < rows.mask.size(); ++i)
    if (rows.mask[i] == 1) of_tokens = std::max(of_tokens, rows.positions[i]);
  for (std::size_t i = 0; i < rows.mask.size(); ++i)
    ANABATIC_REQUIRE(rows.positions[i] <= of_tokens,
                     "[gradients] position_ids[{}]: expected at most the largest position of a "
                     "token, {}, as rope type dynamic depends on it, got {} at padding",
                     i, of_tokens, rows.positions[i]);
}

}  // namespace

GradientTokens read_gradient_tokens(const std::filesystem::path& path,
                                    const model::ModelConfig& config) {
  const TokenReader reader(path);
  const TokenRows rows = read_rows(reader);
  check_rows(rows, config.spec.vocab_size);
  if (config.spec.learned_positions > 0) check_positions(rows, config.spec.learned_positions);
  if (config.counts.has_window()) check_no_holes(rows, reader.length());
  if (config.spec.rope.variant == "dynamic") check_largest_position(rows);
  GradientTokens tokens{.batch = reader.batch(), .length = reader.length()};
  io::MicroBatch& batch = tokens.micro_batch;
  std::int32_t begin = 0;  // of the row
  for (std::size_t at = 0; at < rows.ids.size(); ++at) {
    const bool is_first = static_cast<std::int64_t>(at) % tokens.length == 0;
    const bool is_last = static_cast<std::int64_t>(at + 1) % tokens.length == 0;
    const auto row = static_cast<std::int32_t>(batch.tokens.size());
    if (is_first) begin = row;
    if (rows.mask[at] == 0) continue;
    const std::int64_t label = is_last ? io::kIgnoredLabel : rows.labels[at + 1];
    batch.tokens.push_back(static_cast<std::int32_t>(rows.ids[at]));
    batch.labels.push_back(static_cast<std::int32_t>(label));
    batch.positions.push_back(static_cast<std::int32_t>(rows.positions[at]));
    batch.key_begin.push_back(begin);
    batch.key_end.push_back(row + 1);
    batch.documents.push_back(begin);
    batch.num_documents += row == begin;
    batch.unmasked_tokens += label != io::kIgnoredLabel;
    tokens.places.push_back(static_cast<std::int64_t>(at));
  }
  batch.real_tokens = static_cast<std::int64_t>(tokens.places.size());
  ANABATIC_REQUIRE(!tokens.places.empty(),
                   "[gradients] attention_mask: expected at least one token, got padding only");
  return tokens;
}

}  // namespace anabatic::train
