// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/held_parts.h"

#include "base/error.h"
#include "spec/shards.h"

namespace anabatic::train {

std::vector<HeldPart> held_parts(const spec::Mesh& mesh, const TensorType& of_rank,
                                 const spec::Rows& of_parameter, const spec::Rows& own) {
  const std::int64_t rows = of_rank.num_elements() / of_rank.dim(-1);
  const bool has_experts = !of_parameter.is_whole();
  const spec::Axis axis = spec::data_axis(!has_experts);
  const std::int32_t num_parts = own.count == rows ? 1 : mesh.size(axis);
  std::vector<HeldPart> parts;
  for (std::int32_t expert = 0; expert < (has_experts ? mesh.expert : 1); ++expert)
    for (std::int32_t i = 0; i < num_parts; ++i) {
      HeldPart part{of_rank, {expert * rows, rows, own.total}, {}};
      if (num_parts > 1) {
        const auto shard = spec::shard_of(of_rank, num_parts, i);
        ANABATIC_CHECK(shard.has_value(), "[ranks] {} in {} parts", to_string(of_rank), num_parts);
        part.type = spec::type_of(*shard, of_rank);
        part.rows.first += shard->first_row;
        part.rows.count = shard->matrices * shard->rows;
      }
      for (std::int32_t rank = 0; rank < mesh.world(); ++rank) {
        const spec::Coordinates at = spec::coordinates_of(mesh, rank);
        if ((!has_experts || at[spec::Axis::kExpert] == expert) &&
            (num_parts == 1 || at[axis] == i))
          part.ranks.push_back(rank);
      }
      parts.push_back(std::move(part));
    }
  return parts;
}

}  // namespace anabatic::train
