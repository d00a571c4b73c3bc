// SPDX-License-Identifier: Apache-2.0
#include "train/config/parallel_keys.h"

#include "train/config/config_key.h"

namespace anabatic::train {
namespace {

void add_mesh_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(integer(
      "parallel.local_ranks",
      "Ranks that share each step, as threads of this process. Each has its own micro-batches and "
      "a copy of the model, and computes with its share of device.threads. A step has "
      "micro_batch_size x gradient_accumulation_steps x local_ranks samples.",
      1, AT(parallel.local_ranks), kMostRanks));
  keys.push_back(string("parallel.strategy",
                        "JSON file with the sizes data_parallel, tensor_parallel or "
                        "model_parallel, pipeline_parallel, expert_parallel and context_parallel, "
                        "in place of the keys. Empty takes the keys.",
                        AT(parallel.strategy)));
  keys.push_back(
      or_word(integer("parallel.world", "Ranks that a plan is for. auto is those that are started.",
                      1, AT(parallel.world), kMostRanks),
              "auto", RunConfig::Parallel::kStarted, AT(parallel.world)));
  keys.push_back(or_word(
      integer("parallel.data",
              "Ranks along the data axis: each has its own samples. auto is all ranks, divided by "
              "tensor x context x pipeline.",
              1, AT(parallel.data), kMostRanks),
      "auto", RunConfig::Parallel::kRest, AT(parallel.data)));
  keys.push_back(integer("parallel.expert",
                         "Ranks that share the experts of a layer. It divides tensor x context x "
                         "data and the number of experts.",
                         1, AT(parallel.expert), kMostRanks));
  keys.push_back(integer("parallel.tensor",
                         "Ranks that share the matrices of a layer. Only 1 is there yet.", 1,
                         AT(parallel.tensor), kMostRanks));
  keys.push_back(integer("parallel.context",
                         "Ranks that share the tokens of a sample. Only 1 is there yet.", 1,
                         AT(parallel.context), kMostRanks));
  keys.push_back(integer("parallel.pipeline",
                         "Stages of layers, each on ranks of its own. Only 1 is there yet.", 1,
                         AT(parallel.pipeline), kMostRanks));
}

void add_exchange_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(choice("parallel.optimizer",
                        "What each rank keeps of the optimizer's state. sharded is its share, "
                        "which it updates for all; replicated is all of it.",
                        {"sharded", "replicated"}, AT(parallel.optimizer)));
  keys.push_back(choice("parallel.reduction",
                        "How gradients are summed over ranks. ordered adds in a fixed order, so "
                        "that bits repeat. fast takes what `bench exchange` measured to be faster, "
                        "or MPI's own sums from 8 ranks on.",
                        {"ordered", "fast"}, AT(parallel.reduction)));
  keys.push_back(choice("parallel.exchange",
                        "What moves the bytes of exchanges that add nothing. ordered is our own "
                        "messages; mpi is the collectives of MPI's library, between processes. "
                        "auto is what `bench exchange` measured to be faster, else ordered.",
                        {"auto", "mpi", "ordered"}, AT(parallel.exchange)));
  keys.push_back(or_word(
      number("parallel.expert_capacity",
             "Room for the rows that come to a rank's experts, as a multiple of an even share. A "
             "step that needs more runs again with more room. auto has room for the most that can "
             "come, or less where memory.budget has none for it.",
             1, 1e6, AT(parallel.expert_capacity)),
      "auto", RunConfig::Parallel::kFitting, AT(parallel.expert_capacity)));
  keys.push_back(boolean("parallel.overlap",
                         "Compute while exchanges between ranks are under way. false awaits each "
                         "one at once, with equal bits.",
                         AT(parallel.overlap)));
  keys.push_back(string("parallel.emulate",
                        "File with the links of a cluster. Exchanges take as long as over these. "
                        "Empty takes the machine as it is.",
                        AT(parallel.emulate)));
  keys.push_back(number("parallel.patience",
                        "Seconds for which a rank waits within a step while nothing arrives. Then "
                        "the run ends, and names the ranks that are missing.",
                        1e-3, 1e9, AT(parallel.patience)));
}

}  // namespace

void add_parallel_keys(std::vector<ConfigKey>& keys) {
  add_mesh_keys(keys);
  add_exchange_keys(keys);
}

}  // namespace anabatic::train
