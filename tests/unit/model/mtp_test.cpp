// SPDX-License-Identifier: Apache-2.0
#include "model/mtp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/graph.h"
#include "ops/table.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTwoDepths = R"("num_nextn_predict_layers": 2)";

ModelConfig with_mtp(const std::string& family, const std::string& members = kTwoDepths) {
  ModelConfig config = config_from(small_json(family, members));
  take_mtp(config, true);
  return config;
}

TEST(Mtp, LayersAreOfTheConfigAndNotOfTheModelUntilTheyAreTaken) {
  for (const char* family : {"deepseek_v3", "glm4_moe", "glm4_moe_lite", "pangu_ultra_moe"}) {
    const ModelConfig config = config_from(small_json(family, kTwoDepths));
    ASSERT_EQ(config.mtp_layers.size(), 2u) << family;
    EXPECT_TRUE(std::holds_alternative<Moe>(config.mtp_layers[1].feed_forward));
    EXPECT_TRUE(config.spec.mtp.empty());
    ModelConfig taken = config, kept = config;
    take_mtp(taken, true);
    take_mtp(kept, false);
    EXPECT_GT(taken.counts.total, config.counts.total);
    EXPECT_EQ(kept.counts.total, config.counts.total);
  }
  // As transformers' classes have it.
  EXPECT_EQ(config_from(small_json("deepseek_v3")).mtp_layers.size(), 1u);
  EXPECT_EQ(config_from(small_json("glm4_moe_lite")).mtp_layers.size(), 0u);
  EXPECT_EQ(config_from(small_json("deepseek_v3", R"("num_mtp_layers": 0)")).mtp_layers.size(), 0u);
  EXPECT_THAT(message_of<InvalidArgument>([] {
                config_from(small_json("glm4_moe",
                                       R"("num_mtp_layers": 2, "num_nextn_predict_layers": 1)"));
              }),
              HasSubstr("num_nextn_predict_layers: expected what num_mtp_layers says, 2, got 1"));
}

TEST(Mtp, GraphHasItsOwnInputsAndALoss) {
  const ModelConfig config = with_mtp("deepseek_v3");
  const ir::Graph graph = build_graph(
      config, {.num_tokens = 5, .with_logits = true, .keeps_mtp = true, .mtp_coef = 0.5});
  ir::verify(graph);
  std::vector<std::string> batch, outputs;
  for (const ir::ValueId id : graph.batch) batch.emplace_back(text(graph.value(id).name));
  for (const ir::ValueId id : graph.outputs) outputs.emplace_back(text(graph.value(id).name));
  EXPECT_THAT(batch, ElementsAre("tokens", "positions", "key_begin", "key_end", "documents",
                                 "labels", "mtp_tokens.1", "mtp_documents.1", "mtp_tokens.2",
                                 "mtp_documents.2", "mtp_labels.1", "mtp_labels.2"));
  EXPECT_THAT(outputs, ElementsAre("loss", "aux_loss", "expert_load.1", "expert_load.2", "mtp_loss",
                                   "expert_load.3", "expert_load.4", "logits"));
  EXPECT_NE(graph.find_state(intern("layers.4.mtp.hidden_proj.weight")), nullptr);
  for (const ir::State& state : graph.states)
    EXPECT_EQ(state.is_trainable, !text(state.name).ends_with(kCorrectionBias)) << text(state.name);
}

TEST(Mtp, AGraphWithoutItsLossHoldsItsParametersOrNot) {
  const ModelConfig config = with_mtp("glm4_moe");
  const ir::Graph kept = build_graph(config, {.num_tokens = 5, .keeps_mtp = true});
  ir::verify(kept);
  EXPECT_FALSE(kept.find_state(intern("layers.3.mtp.norm.weight"))->is_trainable);
  EXPECT_TRUE(kept.find_state(intern("layers.2.router.weight"))->is_trainable);
  const ir::Graph plain = build_graph(config, {.num_tokens = 5});
  ir::verify(plain);
  EXPECT_EQ(plain.find_state(intern("layers.3.mtp.norm.weight")), nullptr);
  EXPECT_EQ(plain.nodes.size(), kept.nodes.size());
}

// Files of a model with two layers of multi-token prediction after its three.
class MtpFiles : public ::testing::Test {
 protected:
  MtpFiles() { write(make_weight_map(config_)); }

  void write(const WeightMap& map) {
    export_weights(map, folder_.path(), SaveDType::kSource, values_of(states_));
  }
  // The map without tensors whose names contain a text.
  WeightMap without(const std::string& part) const {
    WeightMap map = make_weight_map(config_);
    std::erase_if(map.tensors, [&](const FileTensor& tensor) {
      return tensor.name.find(part) != std::string::npos;
    });
    return map;
  }
  std::string error() const {
    return message_of<InvalidArgument>([&] { read_weight_map(config_, folder_.path()); });
  }

  ModelConfig config_ = with_mtp("deepseek_v3");
  States states_ = random_states(config_, 3);
  io::TempDirectory folder_;
};

TEST_F(MtpFiles, HaveTheProductsOfBothRowsInOneMatrix) {
  EXPECT_TRUE(holds_mtp(config_, folder_.path()));
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(folder_.path());
  const io::TensorEntry* entry = files.find("model.layers.4.eh_proj.weight");
  ASSERT_NE(entry, nullptr);
  ASSERT_EQ(entry->shape, (std::vector<std::int64_t>{12, 24}));
  std::vector<float> values(12 * 24);
  std::copy_n(reinterpret_cast<const float*>(entry->data.data()), values.size(), values.begin());
  const auto& of_embedding = states_.at("layers.4.mtp.embedding_proj.weight");
  const auto& of_hidden = states_.at("layers.4.mtp.hidden_proj.weight");
  for (std::size_t row = 0; row < 12; ++row)
    for (std::size_t column = 0; column < 12; ++column) {
      EXPECT_EQ(values[row * 24 + column], of_embedding[row * 12 + column]);
      EXPECT_EQ(values[row * 24 + 12 + column], of_hidden[row * 12 + column]);
    }
  States got = states_;
  for (auto& [name, all] : got) std::fill(all.begin(), all.end(), -1.0f);
  import_weights(config_, folder_.path(), buffers_of(got));
  EXPECT_EQ(got, states_);
}

TEST_F(MtpFiles, OfHalfALayerAreAnErrorThatListsWhatIsMissing) {
  write(without("model.layers.3.mlp.experts.1."));
  EXPECT_THAT(error(), HasSubstr("model.layers.3.mlp.experts.1.up_proj.weight: missing"));
  write(without("model.layers.4."));
  EXPECT_TRUE(holds_mtp(config_, folder_.path()));
  EXPECT_THAT(error(), HasSubstr("model.layers.4.enorm.weight: missing"));
  write(without("model.layers.3."));
  EXPECT_THAT(error(), HasSubstr("model.layers.3.eh_proj.weight: missing"));
}

TEST_F(MtpFiles, MayHoldCopiesOfEmbeddingAndHeadThatAreEqual) {
  const auto with_copies = [&](const char* of_head) {
    WeightMap map = make_weight_map(config_);
    for (const auto& [copy, parameter] :
         {std::pair("model.layers.3.embed_tokens.weight", "embedding.weight"),
          std::pair("model.layers.4.shared_head.head.weight", of_head)}) {
      FileTensor& tensor = map.tensors.emplace_back(map.tensors.front());  // of the same shape
      tensor.name = copy;
      tensor.pieces.front().state = parameter;
    }
    write(map);
    States got = states_;
    return message_of<InvalidArgument>(
        [&] { import_weights(config_, folder_.path(), buffers_of(got)); });
  };
  EXPECT_EQ(with_copies("head.weight"), "");
  EXPECT_THAT(with_copies("embedding.weight"),
              HasSubstr("expected model.layers.4.shared_head.head.weight to equal lm_head.weight, "
                        "because layers of multi-token prediction share the model's own"));
}

TEST_F(MtpFiles, AreLeftOutByAModelWithoutTheLayers) {
  const ModelConfig plain = config_from(small_json("deepseek_v3", kTwoDepths));
  const WeightMap map = read_weight_map(plain, folder_.path());
  for (const FileTensor& tensor : map.tensors)
    EXPECT_EQ(left_out_layer(plain, tensor.name), -1) << tensor.name;
  EXPECT_EQ(left_out_layer(plain, "model.layers.4.enorm.weight"), 4);
  EXPECT_EQ(left_out_layer(plain, "model.layers.5.enorm.weight"), -1);
  // One layer more than the config says.
  const ModelConfig one = config_from(small_json("deepseek_v3"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { read_weight_map(one, folder_.path()); }),
              HasSubstr("model.layers.4.enorm.weight: surplus"));
}

}  // namespace
}  // namespace anabatic::model
