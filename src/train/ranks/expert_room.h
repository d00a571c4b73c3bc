// SPDX-License-Identifier: Apache-2.0
// Room for the rows that ranks send to each other's experts, where it is less than the most that
// can come (parallel.expert_capacity). A step whose rows do not fit changes nothing and is run
// again by a plan with more room.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/model_session.h"
#include "train/ranks/step_sums.h"

namespace anabatic::train {

// Thrown on all ranks alike, before anything of the step is reduced or updated.
struct MoreExpertRoom {
  double capacity = 0;  // that is enough: spec::Decisions::expert_capacity
  std::string text;     // which layer of which rank needs it, for people
};

class ExpertRoom {
 public:
  // The program is one with updates.
  explicit ExpertRoom(const BoundProgram& program);

  void clear() { most_ = {}; }
  void look(const BoundProgram& program);  // after each forward

  // After the last forward of a step, on all ranks. Throws MoreExpertRoom where a rank lacks room.
  // Does nothing where there is always enough.
  void agree(StepSums& sums, std::int64_t step) const;

 private:
  struct Layer {
    std::string output;          // of the program: the rows that a rank needs
    double share = 0, room = 0;  // rows of an even share, and those that there is room for
    std::int32_t layer = 0;
  };
  struct Need {
    double capacity = 0, rows = 0, room = 0, layer = 0;
  };
  std::vector<Layer> layers_;
  Need most_;
};

}  // namespace anabatic::train
