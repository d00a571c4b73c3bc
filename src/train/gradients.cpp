// SPDX-License-Identifier: Apache-2.0
#include "train/gradients.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "model/lora/peft_layout.h"
#include "model/weights.h"
#include "train/config/precision_keys.h"
#include "train/gradient_tokens.h"
#include "train/model_session.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

// Rows of the micro-batch at their places in [B,S,V]; zeroes where padding is.
std::vector<float> placed(const GradientTokens& given, const float* rows, std::int64_t width) {
  std::vector<float> all(static_cast<std::size_t>(given.batch * given.length * width));
  for (std::size_t i = 0; i < given.places.size(); ++i)
    std::copy_n(rows + static_cast<std::int64_t>(i) * width, width,
                all.begin() + given.places[i] * width);
  return all;
}

float objective_of(const BoundProgram& program, const model::ModelConfig& config, bool adds_aux,
                   double mtp_coef) {
  double loss = program.scalar("loss");
  if (adds_aux) loss += config.router_aux_loss_coef * program.scalar("aux_loss");
  if (mtp_coef != 0) loss += mtp_coef * program.scalar("mtp_loss");
  return static_cast<float>(loss);
}

// The tensors of an adapter as its files spell them; none without one.
struct AdapterGradients {
  model::Declarations declared{};
  std::vector<model::AdaptableTensor> adaptable{};
  std::vector<model::PeftModule> modules{};
  std::vector<model::PeftTensor> tensors{};
  model::WeightMap map{};

  explicit AdapterGradients(const model::ModelConfig& config) {
    if (!config.adapter) return;
    declared = model::adaptable_parameters(config);
    adaptable = model::adaptable_tensors(config, declared);
    modules = model::peft_modules(config, *config.adapter, adaptable);
    tensors = model::peft_tensors(modules);
    map = model::module_map(config);
  }
};

}  // namespace

void write_gradients(const RunConfig& run, const std::filesystem::path& tokens,
                     const std::filesystem::path& output) {
  // transformers' loss is that of the model's own layers.
  const bool adds_mtp = run.train.mtp_loss_coef > 0;
  // Those of fp16 and mixed are multiples by a loss scale.
  const RunConfig base = adds_mtp ? run : without_mtp(run);
  ModelSession session(has_gradients_in_fp16(base) ? with_inference_precision(base) : base, false);
  const model::ModelConfig& config = session.config();
  const GradientTokens given = read_gradient_tokens(tokens, config);
  const io::MicroBatch& batch = given.micro_batch;
  const bool adds_aux = model::num_experts(config.spec) > 0 && config.output_router_logits;
  const auto program =
      session.bind({.name = "gradients",
                    .build = {.num_tokens = static_cast<std::int64_t>(given.places.size()),
                              .with_logits = true,
                              .balance_loss = model::BalanceLoss::kAllLayers,
                              .balance_coef = adds_aux ? config.router_aux_loss_coef : 0.0,
                              .keeps_mtp = adds_mtp,
                              .mtp_coef = mtp_coef_of(session.run(), config)},
                    .training = true,
                    .with_update = false,
                    .as_trained = true});
  session.load_parameters();
  session.refresh_derived();
  program->set_batch(batch);
  set_loss_scales(*program, totals_of(batch));
  set_mtp_scales(*program, {&batch, 1});
  // No label at all: transformers divides zero by zero too.
  program->set_scalar("inverse_tokens",
                      static_cast<float>(1.0 / static_cast<double>(batch.unmasked_tokens)));
  program->run_alone(spec::Action::kForward);
  const float loss = objective_of(*program, config, adds_aux, mtp_coef_of(session.run(), config));
  const TensorView logits = program->executor->output("logits");
  const std::vector<float> kept = placed(given, logits.as<const float>(), config.spec.vocab_size);
  program->run_alone(spec::Action::kBackward);

  const auto gradient_of = [&](std::string_view state) {
    const TensorView view = program->executor->output(fmt::format("gradients.{}", state));
    return std::span<const float>(view.as<const float>(),
                                  static_cast<std::size_t>(view.type->num_elements()));
  };
  // transformers has no gradients of buffers either.
  std::vector<model::FileTensor> tensors = session.weight_map().tensors;
  std::erase_if(tensors, [&](const model::FileTensor& tensor) {
    return !program->compiled.graph.find_state(intern(tensor.pieces.front().state))->is_trainable;
  });
  std::vector<io::TensorInfo> infos{
      {"loss", DType::kFloat32, {}},
      {"logits", DType::kFloat32, {given.batch, given.length, config.spec.vocab_size}}};
  for (const auto& tensor : tensors)
    infos.push_back({"grad." + tensor.name, DType::kFloat32, tensor.shape});
  const AdapterGradients of_adapter(config);
  for (const model::PeftTensor& tensor : of_adapter.tensors)
    infos.push_back({"grad." + tensor.name, DType::kFloat32, tensor.shape});
  io::SafetensorsWriter writer = io::SafetensorsWriter::single_file(output, infos);
  writer.write("loss", std::as_bytes(std::span<const float>(&loss, 1)));
  writer.write("logits", std::as_bytes(std::span<const float>(kept)));
  const auto read = [&](std::string_view state, std::int64_t first, std::span<float> part) {
    std::copy_n(gradient_of(state).begin() + first, part.size(), part.begin());
  };
  for (const auto& tensor : tensors)
    model::read_in_file_order(tensor, read, [&](std::span<const float> values) {
      writer.write("grad." + tensor.name, std::as_bytes(values));
    });
  for (const model::PeftTensor& tensor : of_adapter.tensors)
    writer.write(
        "grad." + tensor.name,
        std::as_bytes(std::span<const float>(model::peft_values(tensor, of_adapter.map, read))));
  writer.finish();
}

}  // namespace anabatic::train
