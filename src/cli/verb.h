// SPDX-License-Identifier: Apache-2.0
// A verb of the command line: what it takes and what it does. verb.cpp lists the verbs,
// command_line.cpp parses for them.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/run_config.h"

namespace anabatic::cli {

struct VerbOption {
  std::string_view name;  // "--prompt"
  std::string_view help;  // one phrase or sentence
  bool required = false, is_list = false, is_flag = false;
  std::string_view value = "VALUE";  // what help calls its value: "FILE"
};

// What the user wrote after the verb.
struct Invocation {
  std::vector<std::string> positionals;
  std::map<std::string, std::vector<std::string>, std::less<>>
      options;                 // by VerbOption::name; absent when not given
  train::Overrides overrides;  // config keys given as flags

  bool has(std::string_view option) const { return options.find(option) != options.end(); }
  std::string value(std::string_view option) const { return options.find(option)->second.at(0); }
  // InvalidArgument naming the option when its value is no integer >= 0.
  std::int64_t integer(std::string_view option, std::int64_t fallback) const;
};

struct Verb {
  std::string_view name, help;
  std::string_view positional;  // "MODEL_DIR", "FROM TO", "CONFIG.yaml?" (optional), "RUN..." (one
                                // or more), "" for none
  std::vector<VerbOption> options;
  bool takes_config_keys;  // the keys that train/config/key_verbs.h says it reads are flags too
  int (*run)(const Invocation&);  // the process's exit code; errors are thrown
};

// In the order in which help lists them.
const std::vector<const Verb*>& all_verbs();

// InvalidArgument naming all verbs and the nearest one.
const Verb& find_verb(std::string_view name);

const Verb& bench_verb();
const Verb& check_op_verb();
const Verb& check_verb();
const Verb& convert_verb();
const Verb& data_verb();
const Verb& doctor_verb();
const Verb& evaluate_verb();
const Verb& generate_verb();
const Verb& gradients_verb();
const Verb& help_verb();
const Verb& info_verb();
const Verb& lora_verb();
const Verb& new_op_verb();
const Verb& plan_verb();
const Verb& profile_verb();
const Verb& report_verb();
const Verb& tokenize_verb();
const Verb& train_verb();

}  // namespace anabatic::cli
