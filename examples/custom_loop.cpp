// SPDX-License-Identifier: Apache-2.0
// usage: custom_loop MODEL OUTPUT: teaches a model to count, with data and a schedule of its own.
#include <anabatic/error.h>
#include <anabatic/session.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

// Token ids that go up by `stride`.
std::vector<anabatic::Sequence> batch(const anabatic::Session& session, std::int32_t stride) {
  std::vector<anabatic::Sequence> sequences;
  for (std::int64_t i = 0; i < session.sequences_per_step(); ++i) {
    anabatic::Sequence sequence;
    for (std::int64_t t = 0; t < session.sequence_length(); ++t)
      sequence.tokens.push_back(static_cast<std::int32_t>((i + t * stride) % session.vocabulary()));
    sequences.push_back(sequence);
  }
  return sequences;
}

// Warm-up over 5 steps, then 1 / sqrt(step).
double learning_rate(std::int64_t step) {
  const auto s = static_cast<double>(step);
  return 1e-2 * std::min(s / 5, std::sqrt(5 / s));
}

void run(const std::string& model, const std::string& output) {
  anabatic::Config config;
  config.model = {.path = model, .init = anabatic::Config::Model::Init::kRandom};
  config.data.sequence_length = 32;
  config.train.micro_batch_size = 2;
  config.train.gradient_accumulation_steps = 2;
  anabatic::Session session(config);
  const double before = session.evaluate(batch(session, 1)).loss;
  for (int i = 0; i < 20; ++i) {
    const anabatic::StepResult step =
        session.step(batch(session, 1), learning_rate(session.num_steps() + 1));
    const std::vector<anabatic::GradientNorm> norms = session.gradient_norms();
    const auto largest = std::max_element(
        norms.begin(), norms.end(), [](const auto& a, const auto& b) { return a.norm < b.norm; });
    std::printf("step %2d: loss %.4f, gradient norm %.3f, largest of %s\n",
                static_cast<int>(step.step), step.loss, step.gradient_norm,
                largest->parameter.c_str());
  }
  std::printf("held-out loss: %.4f before, %.4f after\n", before,
              session.evaluate(batch(session, 1)).loss);

  // Weights by name: the norm of the last layer, halved and put back.
  std::vector<float> weights(4);
  session.read("norm.weight", 0, weights);
  std::vector<float> halved = weights;
  for (float& weight : halved) weight /= 2;
  session.write("norm.weight", 0, halved);
  session.write("norm.weight", 0, weights);

  // Another session goes on from the checkpoint with the same bits.
  const std::string checkpoint = session.save(output);
  anabatic::Session other(config);
  other.restore(checkpoint);
  const double here = session.step(batch(session, 1), 1e-3).loss;
  const double there = other.step(batch(other, 1), 1e-3).loss;
  std::printf("step %d after %s: %.17g here, %.17g there\n", static_cast<int>(other.num_steps()),
              checkpoint.c_str(), here, there);
  if (std::memcmp(&here, &there, sizeof here) != 0) throw anabatic::Error("the losses differ");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    run(argv[1], argv[2]);
  } catch (const anabatic::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
