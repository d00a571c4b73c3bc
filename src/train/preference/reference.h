// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of the completions of pairs by the reference: computed once, stored next to the
// data, and compared with what the first step computes.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/data/dataset.h"
#include "io/data/loader.h"
#include "io/data/reference_file.h"
#include "train/model_session.h"

namespace anabatic::train {

// A forward that gives the log-probability of each label. With an adapter B is zero while this
// lives.
class Reference {
 public:
  // Takes the policy's training program, for another one may round otherwise. Both outlive it.
  Reference(ModelSession& session, BoundProgram& training);
  // Binds a program for it.
  explicit Reference(ModelSession& session);
  ~Reference();  // B has its values again; what is derived from it, after refresh_derived()
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // The session has its parameters now, those that `weights` names (base_identity).
  void take_weights(std::string weights);

  // Gives the dataset the values that are stored, and computes and stores those that are not.
  // Returns the tokens of the files whose values it computed.
  std::int64_t attach(io::Dataset& dataset);

  // The log-probability of each label, 0 where a row has none.
  std::vector<float> log_probabilities(const io::MicroBatch& batch);

 private:
  // What values follow from, besides the file's own tokens and weights.
  std::string rules() const;
  // Computes the rows of the files that have a writer.
  void write(const io::Dataset& dataset, std::map<std::size_t, io::ReferenceFileWriter>& writers);

  ModelSession& session_;
  std::string weights_;
  std::unique_ptr<BoundProgram> own_;
  BoundProgram& program_;
  std::map<Name, std::vector<std::byte>> adapter_;  // the values of each B
};

// The model in the directory dpo.reference, in memory of its own. InvalidArgument where its
// vocabulary is not the policy's.
class OtherModel {
 public:
  OtherModel(const RunConfig& run, const model::ModelConfig& policy);
  Reference& reference() { return *reference_; }
  const std::string& weights() const { return weights_; }

 private:
  std::unique_ptr<ModelSession> session_;
  std::unique_ptr<Reference> reference_;
  std::string weights_;
};

// By how much the log-probability of a completion may depend on where in a micro-batch it lies, a
// token: activations are rounded in another order.
double packing_bound(const RunConfig& run);

// InternalError where a completion's stored log-probability is not that of its own packing, `own`.
// Returns the largest difference, a token.
double require_stored(const io::MicroBatch& batch, const std::vector<float>& own, double bound);

// The largest |z| that pairs may have where the policy is the reference.
inline constexpr double kMostMargin = 1e-6;

}  // namespace anabatic::train
