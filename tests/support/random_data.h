// SPDX-License-Identifier: Apache-2.0
// Data for op cases, drawn by Philox from (seed, input, element), so that a seed repeats a case
// anywhere.
#pragma once
#include "support/case_file.h"
#include "support/reference.h"

namespace anabatic::testing {

// kExact: small integers, so that any order of summation is exact. kBounded: normal deviates.
enum class Regime { kExact, kBounded };

// The inputs of one case; D stands for `dtype`. Recipes, in addition to the regime's own data:
//   normal(s) positive constant(v) softmax        floats
//   quantized[(deviation)]                        any elements; scales normal, of moments positive,
//                                                 of MXFP4 2^-9 to 2^-4
//   below(n) permutation iota(first) constant(v)  integers
//   experts(E) experts(E,skewed|same|high)        distinct experts of a token, i32[T,k]
//   offsets(R) offsets(R,skewed|last)             rows of E + 1 ascending offsets
//   labels(V,p)                                   p percent of them -100
//   document_begin(n) positions(n)                T rows cut into n documents
//   documents(n)                                  likewise, every third of them padding: -1
//   completions(n)                                of n pairs, with a prompt before each: -1
//   row_end(S)                                    S - T + i + 1
//   late_begin(n)                                 the first n rows have no key
//   top_of(i) chosen(i,j,normalize)               experts and weights from probabilities
//   forward(OP,o)                                 output o of ref OP on the inputs before this one
//   forward(attention,o,s)                        likewise, with a sink s of every head
//   block_offsets(kind) block_ids(kind)           lists of key blocks: all, own, some, few, ...
//   forward(attention,o,lists,kind,G,B[,s])       with such lists, of G groups and B blocks
//   forward(attention,...,drops,n)                with draws of dropout n, n + 1, n + 2
//   sparse_index(panels,steps)                    of a sparse weight, some blocks of each matrix
//   mask(n)                                       u8, of which each matrix keeps n
OpCall make_call(const CaseFile& file, const CaseLine& line, const std::string& dtype,
                 Regime regime, std::uint64_t seed);

// The call that make_call gives, with the types of its operands alone.
OpCall call_without_data(const CaseFile& file, const CaseLine& line, const std::string& dtype);

// Values of the regime for buffers that a case does not describe, such as what `+=` adds to.
Values random_values(const TensorType& type, Regime regime, std::uint64_t seed,
                     std::uint64_t stream);

}  // namespace anabatic::testing
