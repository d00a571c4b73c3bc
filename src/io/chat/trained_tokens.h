// SPDX-License-Identifier: Apache-2.0
// Which tokens of a rendered conversation are trained (docs/internals/chat-templates.md).
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "io/chat/chat_format.h"

namespace anabatic::io {

enum class LossOn { kAssistant, kAll, kCompletion };

struct TrainedTokens {
  std::vector<float> weights;  // one a token; with `appends_eos` one more, of the EOS after them
  bool appends_eos = false;    // the template closes the last turn with no special token
  // Messages of assistants without a trained stop token, and without a trained token.
  std::vector<std::size_t> unstopped, untrained;
  // Bytes [begin, end) that are trained, in order.
  struct Span {
    std::size_t begin = 0, end = 0, message = 0;
  };
  std::vector<Span> spans;
};

// `begins` are the bytes where the tokens of the whole text begin (Tokenizer::encode), `is_special`
// tells of a token by its index. `first_completion` is the message with which a completion begins.
TrainedTokens trained_tokens(const RenderedChat& chat, LossOn loss_on,
                             std::span<const std::uint32_t> begins,
                             const std::function<bool(std::size_t)>& is_special,
                             std::size_t first_completion = 0);

}  // namespace anabatic::io
