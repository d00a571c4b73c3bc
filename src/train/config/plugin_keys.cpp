// SPDX-License-Identifier: Apache-2.0
#include "train/config/plugin_keys.h"

#include "train/config/config_key.h"

namespace anabatic::train {

ConfigKey replace_key() {
  return {.name = "model.replace",
          .help =
              "Operators of the model that operators of plugins replace, wherever they are in a "
              "segment: {segment: mlp, op: swiglu, with: my_swiglu}.",
          .is_list = true,
          .set =
              [](RunConfig& config, Values values) {
                config.model.replace.clear();
                for (const std::string& text : values)
                  config.model.replace.push_back(plugin::parse_replacement(text));
              },
          .show =
              [](const RunConfig& config) {
                return show_list(config.model.replace, [](const plugin::Replacement& replacement) {
                  return plugin::to_string(replacement);
                });
              },
          .takes_maps = true,
          .type = "list of text",
          .allowed = "{segment: NAME, op: NAME, with: NAME}"};
}

}  // namespace anabatic::train
