// SPDX-License-Identifier: Apache-2.0
// The samples that data.train becomes, without a run.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "anabatic/config.h"
#include "anabatic/events.h"
#include "anabatic/sequence.h"

namespace anabatic {

// Const members may be called from many threads at once.
class ANABATIC_API Dataset {
 public:
  // The files of data.train with the tokenizer and vocabulary of model.path, as a run reads them.
  // Text is tokenized once, into data.cache. InvalidArgument lists every problem of the config.
  explicit Dataset(const Settings& settings, const std::string& yaml_file = "",
                   RunListener* listener = nullptr);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  std::int64_t num_samples() const;
  std::int64_t num_tokens() const;
  std::int64_t num_documents() const;
  // A sample without its padding; samples are in the order of the files. InvalidArgument for a
  // number that is not below num_samples(). A document that goes on in the next sample has no label
  // for that sample's first token here, whereas a run learns it.
  Sequence sample(std::int64_t number) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
