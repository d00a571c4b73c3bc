// SPDX-License-Identifier: Apache-2.0
#include "train/tokenize.h"

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "io/tokenizer/bpe_trainer.h"
#include "io/tokenizer/tokenizer.h"
#include "train/tokenizer_texts.h"

namespace anabatic::cli {
namespace {

std::vector<std::filesystem::path> paths_of(const Invocation& invocation, std::string_view option) {
  const auto& values = invocation.options.find(option)->second;
  return {values.begin(), values.end()};
}

int train_tokenizer(const Invocation& invocation, const train::RunConfig& config) {
  ANABATIC_REQUIRE(invocation.has("--vocab_size") && invocation.has("--output"),
                   "[tokenize] --train needs --vocab_size N and --output DIR");
  const std::string size = invocation.value("--vocab_size");
  ANABATIC_REQUIRE(!size.empty() && size.size() < 10 &&
                       size.find_first_not_of("0123456789") == std::string::npos,
                   "[tokenize] --vocab_size: expected a number, got '{}'", size);
  io::TrainOptions options;
  options.vocab_size = std::stoi(size);
  options.threads = train::num_threads_of(config);
  const std::vector<io::DataFile> files =
      train::text_files(paths_of(invocation, "--train"), config, "--train");
  io::write_tokenizer(options, io::train_bpe(options, train::texts_of(files)),
                      invocation.value("--output"));
  print_output("wrote {}/tokenizer.json\n", invocation.value("--output"));
  return 0;
}

// Prints one JSON array of ids for each line of the file, with the tokenizer's special tokens.
int print_ids(const Invocation& invocation, const io::Tokenizer& tokenizer,
              const io::SpecialTokens& special) {
  const std::string text = read_file(invocation.value("--ids"));
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::vector<std::int32_t> ids =
        tokenizer.encode(std::string_view(text).substr(begin, end - begin), false);
    special.text.put_behind(ids, special.text.put_before(ids, 0));
    std::string line = "[";
    for (const std::int32_t id : ids) line += (line.size() > 1 ? "," : "") + std::to_string(id);
    print_output("{}]\n", line);
    begin = end + 1;
  }
  return 0;
}

int write_token_files(const Invocation& invocation, const train::RunConfig& config) {
  ANABATIC_REQUIRE(invocation.has("--output"), "[tokenize] --input needs --output PREFIX");
  const io::TokenizeCounts counts = train::tokenize_files(
      paths_of(invocation, "--input"), invocation.value("--output"), config, "--input");
  print_output("{} documents, {} tokens from {} of text\n", counts.documents, counts.tokens,
               format_bytes(counts.text_bytes));
  return 0;
}

int run_tokenize(const Invocation& invocation) {
  const train::RunConfig config = train::load_run_config("", invocation.overrides);
  const int modes = invocation.has("--train") + invocation.has("--ids") + invocation.has("--input");
  ANABATIC_REQUIRE(modes == 1, "[tokenize] expected one of --input, --ids and --train, got {}",
                   modes);
  if (invocation.has("--train")) return train_tokenizer(invocation, config);
  ANABATIC_REQUIRE(!config.model.path.empty(),
                   "[tokenize] expected --model.path DIR, which holds tokenizer.json");
  if (invocation.has("--input")) return write_token_files(invocation, config);
  const io::Tokenizer tokenizer = io::Tokenizer::load(config.model.path);
  const io::SpecialTokens special = train::special_tokens_of(config, &tokenizer);
  train::log_warnings(special);
  return print_ids(invocation, tokenizer, special);
}

}  // namespace

const Verb& tokenize_verb() {
  static const Verb verb{
      "tokenize",
      "turn text into .bin/.idx files or into ids, or train a tokenizer",
      "",
      {{.name = "--input",
        .help = "text and JSON files to tokenize, also gzipped",
        .is_list = true},
       {.name = "--output",
        .help = "prefix of the .bin/.idx files, or directory for the trained tokenizer"},
       {.name = "--ids",
        .help = "print the ids of each line of this file, with BOS and other tokens that the "
                "tokenizer adds"},
       {.name = "--train",
        .help = "text and JSON files to train a BPE tokenizer on",
        .is_list = true},
       {.name = "--vocab_size", .help = "vocabulary size of the tokenizer to train"}},
      true,
      run_tokenize};
  return verb;
}

}  // namespace anabatic::cli
