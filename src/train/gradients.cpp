// SPDX-License-Identifier: Apache-2.0
#include "train/gradients.h"

#include <fmt/core.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/data/loader.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/weights.h"
#include "train/model_session.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

struct TokenRows {
  std::int64_t batch = 0, length = 0;
  std::vector<std::int64_t> ids, labels;
};

std::vector<std::int64_t> to_ints(const io::TensorEntry& entry) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(entry.num_elements()));
  std::memcpy(values.data(), entry.data.data(), entry.data.size());
  return values;
}

TokenRows read_tokens(const std::filesystem::path& path, std::int64_t vocabulary) {
  const io::SafetensorsDirectory file = io::SafetensorsDirectory::open(path);
  std::string problems;
  const auto find = [&](const char* name) -> const io::TensorEntry* {
    const io::TensorEntry* entry = file.find(name);
    if (entry == nullptr) {
      problems += fmt::format("\n  {}: expected an int64 tensor [B,S], found none", name);
    } else if (entry->dtype_name != "I64" || entry->shape.size() != 2) {
      problems += fmt::format("\n  {}: expected int64 [B,S], found {} with {} dimensions", name,
                              entry->dtype_name, entry->shape.size());
    }
    return entry;
  };
  const io::TensorEntry* ids = find("input_ids");
  const io::TensorEntry* labels = find("labels");
  if (problems.empty() && ids->shape != labels->shape)
    problems += "\n  labels: expected the shape of input_ids";
  if (problems.empty() && ids->num_elements() == 0)
    problems += "\n  input_ids: expected at least one token, found none";
  ANABATIC_REQUIRE(problems.empty(), "[gradients] {}:{}", path.string(), problems);
  TokenRows rows{.batch = ids->shape[0],
                 .length = ids->shape[1],
                 .ids = to_ints(*ids),
                 .labels = to_ints(*labels)};
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    ANABATIC_REQUIRE(rows.ids[i] >= 0 && rows.ids[i] < vocabulary,
                     "[gradients] input_ids[{}]: expected an id below {}, got {}", i, vocabulary,
                     rows.ids[i]);
    ANABATIC_REQUIRE(
        rows.labels[i] == io::kIgnoredLabel || (rows.labels[i] >= 0 && rows.labels[i] < vocabulary),
        "[gradients] labels[{}]: expected -100 or an id below {}, got {}", i, vocabulary,
        rows.labels[i]);
  }
  return rows;
}

// Each row is one document; the label of position i is labels[i + 1], none at the end.
io::MicroBatch to_micro_batch(const TokenRows& rows) {
  io::MicroBatch batch;
  for (std::int64_t b = 0; b < rows.batch; ++b) {
    for (std::int64_t i = 0; i < rows.length; ++i) {
      const std::int64_t at = b * rows.length + i;
      const std::int64_t label =
          i + 1 < rows.length ? rows.labels[static_cast<std::size_t>(at + 1)] : io::kIgnoredLabel;
      batch.tokens.push_back(static_cast<std::int32_t>(rows.ids[static_cast<std::size_t>(at)]));
      batch.labels.push_back(static_cast<std::int32_t>(label));
      batch.positions.push_back(static_cast<std::int32_t>(i));
      batch.key_begin.push_back(static_cast<std::int32_t>(b * rows.length));
      batch.key_end.push_back(static_cast<std::int32_t>(at + 1));
      batch.documents.push_back(static_cast<std::int32_t>(b * rows.length));
      batch.unmasked_tokens += label != io::kIgnoredLabel;
    }
  }
  batch.real_tokens = rows.batch * rows.length;
  batch.num_documents = rows.batch;
  return batch;
}

template <class T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

}  // namespace

void write_gradients(const RunConfig& run, const std::filesystem::path& tokens,
                     const std::filesystem::path& output) {
  ModelSession session(run, false);
  const model::ModelConfig& config = session.config();
  const TokenRows rows = read_tokens(tokens, config.vocab_size);
  const io::MicroBatch batch = to_micro_batch(rows);
  const bool adds_aux = config.num_experts > 0 && config.output_router_logits;
  const auto program =
      session.bind({.name = "gradients",
                    .build = {.num_tokens = rows.batch * rows.length,
                              .with_logits = true,
                              .balance_loss = model::BalanceLoss::kAllLayers,
                              .balance_coef = adds_aux ? config.router_aux_loss_coef : 0.0},
                    .training = true,
                    .with_update = false});
  session.load_parameters();
  session.refresh_derived();
  program->set_batch(batch);
  set_loss_scales(*program, batch.unmasked_tokens, batch.real_tokens, batch.num_documents);
  // No label at all: transformers divides zero by zero too.
  program->set_scalar("inverse_tokens",
                      static_cast<float>(1.0 / static_cast<double>(batch.unmasked_tokens)));
  program->executor->run(spec::Action::kForward);
  float loss = static_cast<float>(program->scalar("loss"));
  if (adds_aux)
    loss = static_cast<float>(program->scalar("loss") +
                              config.router_aux_loss_coef * program->scalar("aux_loss"));
  const TensorView logits = program->executor->output("logits");
  const std::vector<float> kept(logits.as<const float>(),
                                logits.as<const float>() + logits.type->num_elements());
  program->executor->run(spec::Action::kBackward);

  const auto gradient_of = [&](std::string_view state) {
    const TensorView view = program->executor->output(fmt::format("gradients.{}", state));
    return std::span<const float>(view.as<const float>(),
                                  static_cast<std::size_t>(view.type->num_elements()));
  };
  const std::vector<model::FileTensor>& tensors = session.weight_map().tensors;
  std::vector<io::TensorInfo> infos{
      {"loss", DType::kFloat32, {}},
      {"logits", DType::kFloat32, {rows.batch, rows.length, config.vocab_size}}};
  for (const auto& tensor : tensors)
    infos.push_back({"grad." + tensor.name, DType::kFloat32, tensor.shape});
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(output, infos);
  writer.write("loss", bytes_of(std::span<const float>(&loss, 1)));
  writer.write("logits", bytes_of(std::span<const float>(kept)));
  for (const auto& tensor : tensors)
    for (const auto& piece : tensor.pieces)
      writer.write("grad." + tensor.name,
                   bytes_of(gradient_of(piece.state)
                                .subspan(static_cast<std::size_t>(piece.offset),
                                         static_cast<std::size_t>(piece.count))));
  writer.finish();
}

}  // namespace anabatic::train
