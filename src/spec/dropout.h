// SPDX-License-Identifier: Apache-2.0
// Which elements dropout keeps (Srivastava et al., JMLR 15, 2014). Draws are those of a counter: a
// function of seed and step, of the site in the model, and of the element's place in the whole
// step. So no mask is stored, and threads, recompute, cuts into micro-batches, ranks and resumes
// draw alike.
//
// Element (row, column) of a site has 16 bits of Philox4x32-10 with the key of the step. Row counts
// the tokens of the whole step. 16 calls give the bits of 128 columns, so that vectors of any size
// meet whole words:
//   counter = {row, column / 128 · 16 + column % 32 / 2, low and high half of the site's stream}
//   word    = column % 128 / 32, its lower half for an even column
// It is kept where they are not below rate · 2^16. So a smaller rate keeps all that a larger one
// keeps.
//
// Dropout of attention's probabilities has a stream a head, the site's plus the head. A column is
// the key's place in the document of the row.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "base/philox.h"

namespace anabatic::spec {

// Columns whose bits are the words of so many calls.
inline constexpr std::int64_t kDropoutColumns = 128, kDropoutCalls = 16;

// Rates are multiples of 2^-16, so a rate is kept within 2^-17.
inline constexpr std::int64_t kDropoutSteps = std::int64_t{1} << 16;
// The nearest one, in steps: 0 drops nothing, kDropoutSteps everything.
std::int64_t dropout_threshold(double rate);
// What kept elements are multiplied by: 1 / (1 - rate) of that multiple, as f32.
float dropout_scale(double rate);

// The 16 bits of an element of a stream, the hash of a site's name.
std::uint32_t dropout_bits(const PhiloxKey& key, std::uint64_t stream, std::uint32_t row,
                           std::int64_t column);

// Attributes of attention with dropout, and its site.
inline constexpr std::string_view kDropoutRate = "dropout_rate", kDropoutSite = "dropout_site";

// The batch input that all dropout of a graph reads, i32[3]: both words of the key, and the place
// of the micro-batch's first token among the tokens of the whole step, modulo 2^32.
inline constexpr const char* kDropoutDraws = "dropout_draws";
enum DropoutDraw : std::uint8_t { kDropoutKeyLow, kDropoutKeyHigh, kDropoutRow, kNumDropoutDraws };
using DropoutDraws = std::array<std::int32_t, kNumDropoutDraws>;
DropoutDraws dropout_draws(std::uint64_t seed, std::int64_t step, std::int64_t first_row);

}  // namespace anabatic::spec
