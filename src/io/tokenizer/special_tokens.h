// SPDX-License-Identifier: Apache-2.0
// Which special tokens are added around documents and prompts, and which end a generation. Decided
// here for every verb, from the files of one model directory.
//
// EOS, the token that ends a document, is the first that is named, in this order:
//   1. eos_token of special_tokens_map.json, if tokenizer_config.json has no
//      added_tokens_decoder (as transformers reads them);
//   2. eos_token of tokenizer_config.json, then of special_tokens_map.json;
//   3. eos_token_id of generation_config.json: of a list, the one that config.json names too, or
//      else its first;
//   4. eos_token_id of config.json.
// A generation ends at EOS and at every id of 3, or of 4 when there is no 3. If nothing names an
// EOS, documents have none, and a generation ends at the default of transformers for the model's
// family. BOS is found in the same way.
//
// A document or prompt begins with what the post-processor of tokenizer.json adds there. If it adds
// nothing, it begins with BOS, provided that tokenizer_config.json says add_bos_token: true.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/document_ends.h"
#include "io/tokenizer/tokenizer.h"

namespace anabatic::io {

struct SpecialTokenRequest {
  std::filesystem::path directory;  // of the model; each of its files may be missing
  // In place of config.json and tokenizer_config.json of that directory, where they are not "".
  std::string config_text{}, tokenizer_config_text{};
  // The one of that directory; null: ids of config.json and generation_config.json are all there
  // is.
  const Tokenizer* tokenizer = nullptr;
  AddToken add_bos = AddToken::kAuto;
  AddToken append_eos = AddToken::kAuto;
  // What the model's family takes for eos_token_id when config.json has no such field.
  std::vector<std::int64_t> default_eos{};
};

struct SpecialTokens {
  DocumentEnds document{};  // around a document; a prompt has its prefix alone
  DocumentEnds text{};      // around a text that is not to end: the tokenizer's own suffix
  std::optional<std::int32_t> bos, eos;
  std::vector<std::int64_t> stops{};  // ids that end a generation

  // What eos_token_id of config.json and generation_config.json should say, empty: what they do.
  std::vector<std::int64_t> exported_eos{};
  // The prefix comes from elsewhere than the post-processor of tokenizer.json.
  bool post_processor_lacks_prefix = false;
  // One sentence for each disagreement of the files, with what is done about it, and for an EOS
  // that nothing names.
  std::vector<std::string> warnings{};
};

// InvalidArgument naming the file and field for a token that the tokenizer lacks, an id outside the
// vocabulary, and for a BOS or EOS that is asked for and not named.
SpecialTokens resolve_special_tokens(const SpecialTokenRequest& request);

}  // namespace anabatic::io
