// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/run_tasks.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "io/tokenizer/regex.h"
#include "io/tokenizer/tokenizer.h"
#include "train/chat/chat_encoder.h"
#include "train/config/precision_keys.h"
#include "train/generate.h"
#include "train/objective/run_model.h"
#include "train/tasks/sequence_scorer.h"
#include "train/tokenize.h"

namespace anabatic::train {
namespace {

// What str.isspace() of Python is true for, in UTF-8.
constexpr std::array<std::string_view, 29> kSpaces{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

// Bytes of the space that the text begins with; 0 for none.
std::size_t space_at(std::string_view text) {
  for (const std::string_view space : kSpaces)
    if (text.starts_with(space)) return space.size();
  return 0;
}
std::size_t space_before_end(std::string_view text) {
  for (const std::string_view space : kSpaces)
    if (text.ends_with(space)) return space.size();
  return 0;
}
std::string_view without_trailing_space(std::string_view text) {
  while (const std::size_t bytes = space_before_end(text)) text.remove_suffix(bytes);
  return text;
}

// Sequences of a model without a longest length.
constexpr std::int64_t kDefaultLength = 2048;

class TaskRunner {
 public:
  TaskRunner(const RunConfig& run, std::int64_t batch_tokens, bool has_chats)
      : session_(with_inference_precision(without_mtp(without_eos(run))), false),
        tokenizer_(io::Tokenizer::load(tokenizer_folder_or_file(run.model.path))),
        special_(special_tokens_of(session_.run(), &tokenizer_, session_.config().eos_token_ids)),
        longest_(session_.config().max_position_embeddings > 0
                     ? session_.config().max_position_embeddings
                     : kDefaultLength),
        batch_tokens_(batch_tokens) {
    log_warnings(special_);
    if (has_chats) chat_.emplace(run, tokenizer_);
  }

  TaskResult run(const Task& task) {
    TaskResult result{.name = task.name, .file = task.path.string(), .kind = task.kind, .rows = {}};
    for (const TaskRow& row : task.rows) {
      result.rows.emplace_back();
      result.rows.back().line = row.line;
      result.rows.back().id = task.id_of(row);
    }
    num_cut_ = 0;
    if (task.kind == TaskKind::kGenerate) {
      generate(task, result);
    } else {
      score(task, result);
    }
    if (num_cut_ > 0)
      log_warning(
          "[evaluate] {}: {} contexts leave no room for what follows in the {} tokens that the "
          "model "
          "takes; their beginnings are left out",
          task.path.string(), num_cut_, longest_);
    return result;
  }

 private:
  static RunConfig without_eos(RunConfig run) {
    run.data.append_eos = io::AddToken::kNever;  // a context is continued
    return run;
  }

  // What the model reads before a row's choices, shots included.
  RangedText context_of(const Task& task, const TaskRow& row) const {
    std::string text = task.context_of(row);
    if (!task.is_chat) return {.text = std::move(text), .ranges = {}};
    OrderedJson message{{"role", "user"}, {"content", std::move(text)}};
    try {
      return chat_->prompt_of({{"messages", OrderedJson::array({std::move(message)})}});
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          fmt::format("[evaluate] {}:{}: {}", task.path.string(), row.line, error.what()));
    }
  }

  std::vector<std::int32_t> encode(const RangedText& text) const {
    std::vector<std::int32_t> ids = tokenizer_.encode_with_begins(text.text, text.ranges).ids;
    special_.document.put_before(ids, 0);
    return ids;
  }

  // The token before a text that has none before it.
  std::int32_t first_token(const Task& task) const {
    if (special_.bos) return *special_.bos;
    ANABATIC_REQUIRE(special_.eos,
                     "[evaluate] {}: expected a model with a BOS or EOS token, which stands before "
                     "a text without a context, found none",
                     task.path.string());
    return *special_.eos;
  }

  // The last `count` tokens of a sequence as labels, and the token before each.
  static Branch branch_of(std::span<const std::int32_t> sequence, std::size_t count) {
    const std::span<const std::int32_t> labels = sequence.last(count),
                                        tokens = sequence.first(sequence.size() - 1).last(count);
    return {.tokens = {tokens.begin(), tokens.end()}, .labels = {labels.begin(), labels.end()}};
  }

  // Adds a continuation to the context that it shares its prefix with. Contexts follow each other.
  void add_sequence(std::vector<BranchedContext>& contexts, std::size_t first,
                    std::span<const std::int32_t> sequence, std::size_t count) const {
    const std::span<const std::int32_t> prefix = sequence.first(sequence.size() - 1 - count);
    const bool is_new = contexts.size() == first ||
                        !std::equal(prefix.begin(), prefix.end(), contexts.back().prefix.begin(),
                                    contexts.back().prefix.end());
    if (is_new) contexts.push_back({.prefix = {prefix.begin(), prefix.end()}, .branches = {}});
    contexts.back().branches.push_back(branch_of(sequence, count));
  }

  void add_choice(const Task& task, const TaskRow& row, const std::string& choice,
                  std::vector<BranchedContext>& contexts, std::size_t first) {
    const RangedText whole = context_of(task, row);
    const auto [context, continuation] =
        move_trailing_space(whole.text, std::string(task.delimiter_of_choices()) + choice);
    std::vector<std::int32_t> ids, all;
    if (context.empty()) {
      ids = {first_token(task)};
      all = tokenizer_.encode(continuation, false);
      if (all.empty() || all.front() != ids.front()) all.insert(all.begin(), ids.front());
    } else {
      const RangedText kept = whole.first(context.size());
      ids = encode(kept);
      all = encode(kept.with(continuation));
    }
    ANABATIC_REQUIRE(all.size() > ids.size() && !ids.empty(),
                     "[evaluate] {}:{}: expected a continuation with tokens of its own, found none "
                     "in '{}'",
                     task.path.string(), row.line, choice);
    const std::size_t count = all.size() - ids.size();
    std::copy(ids.begin(), ids.end(), all.begin());  // a token may reach across
    ANABATIC_REQUIRE(count <= static_cast<std::size_t>(longest_),
                     "[evaluate] {}:{}: expected a continuation of at most {} tokens, found {}",
                     task.path.string(), row.line, longest_, count);
    std::span<const std::int32_t> sequence = all;
    if (const auto most = static_cast<std::size_t>(longest_) + 1; sequence.size() > most) {
      sequence = sequence.last(most);
      ++num_cut_;
    }
    add_sequence(contexts, first, sequence, count);
  }

  // Windows of the longest length, each with as much context as it has room for.
  void add_text(const Task& task, const TaskRow& row, std::vector<BranchedContext>& contexts,
                std::size_t first) const {
    std::vector<std::int32_t> all = tokenizer_.encode(row.context, false);
    all.insert(all.begin(), first_token(task));
    const auto most = static_cast<std::size_t>(longest_);
    for (std::size_t scored = 1; scored < all.size();) {
      const std::size_t end = std::min(scored + most, all.size()),
                        begin = end > most + 1 ? end - most - 1 : 0;
      add_sequence(contexts, first, std::span(all).subspan(begin, end - begin), end - scored);
      scored = end;
    }
  }

  void score(const Task& task, TaskResult& result) {
    std::vector<BranchedContext> contexts;
    std::vector<std::size_t> ends;  // of each row's contexts
    for (const TaskRow& row : task.rows) {
      const std::size_t first = contexts.size();
      if (task.kind == TaskKind::kText) add_text(task, row, contexts, first);
      for (const std::string& choice : row.choices) add_choice(task, row, choice, contexts, first);
      ends.push_back(contexts.size());
    }
    std::int64_t longest = 1;
    for (const BranchedContext& context : contexts) longest = std::max(longest, context.num_rows());
    SequenceScorer scorer(session_, batch_tokens_, longest);
    const std::vector<std::vector<BranchScore>> scores = scorer.score(contexts);
    std::size_t context = 0;
    for (std::size_t i = 0; i < task.rows.size(); ++i) {
      std::vector<BranchScore> of_row;
      for (; context < ends[i]; ++context)
        of_row.insert(of_row.end(), scores[context].begin(), scores[context].end());
      finish_row(task, task.rows[i], of_row, result.rows[i]);
    }
  }

  static void finish_row(const Task& task, const TaskRow& row, std::span<const BranchScore> scores,
                         RowResult& result) {
    double sum = 0;
    std::vector<double> sums, by_characters, by_bytes;
    for (const BranchScore& score : scores) {
      sum += score.log_probability;
      sums.push_back(score.log_probability);
    }
    switch (task.kind) {
      case TaskKind::kChoices: {
        for (std::size_t i = 0; i < sums.size(); ++i) {
          by_characters.push_back(sums[i] / static_cast<double>(count_characters(row.choices[i])));
          by_bytes.push_back(sums[i] / static_cast<double>(row.choices[i].size()));
        }
        result.chosen = static_cast<std::int64_t>(first_largest(sums));
        for (const auto* scored : {&sums, &by_characters, &by_bytes})
          result.values.push_back(
              static_cast<std::int64_t>(first_largest(*scored)) == row.answer ? 1 : 0);
        break;
      }
      case TaskKind::kTarget:
        result.values = {scores.front().is_greedy ? 1.0 : 0.0, sum};
        break;
      default:
        result.values = {sum, static_cast<double>(count_words(row.context)),
                         static_cast<double>(row.context.size())};
    }
    result.log_probabilities = std::move(sums);
  }

  void generate(const Task& task, TaskResult& result) {
    const std::int64_t most_new =
        std::min(session_.run().generate.max_new_tokens, std::max<std::int64_t>(longest_ - 1, 1));
    const auto most_before =
        static_cast<std::size_t>(std::max<std::int64_t>(longest_ - most_new, 1));
    std::vector<std::vector<std::int32_t>> prompts;
    std::size_t longest = 1;
    for (const TaskRow& row : task.rows) {
      std::vector<std::int32_t> ids = encode(context_of(task, row));
      ANABATIC_REQUIRE(!ids.empty(),
                       "[evaluate] {}:{}: expected a prompt with at least one token, found none",
                       task.path.string(), row.line);
      if (ids.size() > most_before) {
        ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(most_before));
        ++num_cut_;
      }
      longest = std::max(longest, ids.size());
      prompts.push_back(std::move(ids));
    }
    Decoder decoder(session_, static_cast<std::int64_t>(longest) + most_new);
    if (!session_.has_parameters()) session_.load_parameters();
    session_.refresh_derived();
    const std::vector<std::int64_t> stops =
        task.is_chat ? chat_->stops_of(special_.stops) : special_.stops;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      RowResult& row = result.rows[i];
      row.generated = continue_prompt(decoder, prompts[i], task.rows[i].stop, stops, most_new);
      row.values = {matches_answer(task.rows[i], row.generated) ? 1.0 : 0.0};
    }
  }

  // Greedily, up to a stop text, a stop token or the most new tokens.
  std::string continue_prompt(Decoder& decoder, std::span<const std::int32_t> prompt,
                              const std::vector<std::string>& stop_texts,
                              std::span<const std::int64_t> stops, std::int64_t most_new) {
    decoder.truncate(0);
    io::TokenStream stream(tokenizer_, true);
    std::string text;
    std::span<const float> logits = decoder.append(prompt);
    for (std::int64_t i = 0; i < most_new; ++i) {
      const auto token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                   logits.begin());
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
      text += stream.push(token);
      if (cut_at_stop(text, stop_texts)) return text;
      if (i + 1 < most_new) logits = decoder.append(std::span(&token, 1));
    }
    text += stream.finish();
    cut_at_stop(text, stop_texts);
    return text;
  }

  static bool cut_at_stop(std::string& text, const std::vector<std::string>& stops) {
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops) end = std::min(end, text.find(stop));
    if (end == std::string::npos) return false;
    text.resize(end);
    return true;
  }

  ModelSession session_;
  io::Tokenizer tokenizer_;
  io::SpecialTokens special_;
  std::optional<ChatEncoder> chat_;  // where a task needs it
  std::int64_t longest_, batch_tokens_, num_cut_ = 0;
};

}  // namespace

std::vector<TaskResult> run_tasks(const RunConfig& run, std::span<const Task> tasks,
                                  std::int64_t batch_tokens) {
  ANABATIC_REQUIRE(!run.model.path.empty(), "[evaluate] expected model.path, got none");
  TaskRunner runner(run, batch_tokens,
                    std::ranges::any_of(tasks, [](const Task& task) { return task.is_chat; }));
  std::vector<TaskResult> results;
  for (const Task& task : tasks) results.push_back(runner.run(task));
  return results;
}

std::pair<std::string, std::string> move_trailing_space(std::string context,
                                                        std::string continuation) {
  const std::size_t kept = without_trailing_space(context).size();
  continuation.insert(0, context, kept);
  context.resize(kept);
  return {std::move(context), std::move(continuation)};
}

std::string_view strip_space(std::string_view text) {
  while (const std::size_t bytes = space_at(text)) text.remove_prefix(bytes);
  return without_trailing_space(text);
}

std::int64_t count_words(std::string_view text) {
  std::int64_t words = 1;
  for (bool in_space = false; !text.empty();) {
    const std::size_t bytes = space_at(text);
    if (bytes > 0 && !in_space) ++words;
    in_space = bytes > 0;
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return words;
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

bool matches_answer(const TaskRow& row, const std::string& generated) {
  std::string_view found = generated;
  if (!row.regex.empty()) {
    using io::tokenizer::Regex;
    const Regex regex(row.regex, "regex", Regex::Engine::kOniguruma);
    io::tokenizer::RegexScratch scratch;
    io::tokenizer::Match match;
    if (!regex.find_group(generated, scratch, match)) return false;
    found = found.substr(match.begin, match.end - match.begin);
  }
  return strip_space(found) == strip_space(row.choices.front());
}

std::size_t first_largest(std::span<const double> values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace anabatic::train
