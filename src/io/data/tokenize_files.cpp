// SPDX-License-Identifier: Apache-2.0
#include "io/data/tokenize_files.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "io/data/chunks.h"
#include "io/data/indexed_file.h"
#include "io/data/json_values.h"
#include "io/data/weight_file.h"

namespace anabatic::io {
namespace {

constexpr std::size_t kJobRecords = std::size_t{1} << 16;
constexpr std::int64_t kMostProblems = 10;  // that are shown

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// The kind of a file's rows, and the line that says so.
struct KindOfFile {
  RowKind kind;
  std::int64_t line = 0;
};

// What bad rows have.
struct RowProblems {
  std::int64_t count = 0;
  std::string shown;

  void add(std::string_view problem) {
    if (count++ < kMostProblems) shown += fmt::format("\n  {}", problem);
  }
};

struct Record {
  std::size_t end = 0;  // in the job's text
  std::int64_t line = 0;
};

// Text to tokenise and, afterwards, its ids. Either one chunk of a text file or whole records of
// JSON.
struct Job {
  std::filesystem::path path;
  std::string text;
  std::vector<Record> records;  // of JSON
  std::int64_t origin = 0;      // byte offset of the chunk
  bool begins_document = true;
  bool ends_document = true;
  std::optional<KindOfFile> kind;  // of rows

  std::vector<std::int32_t> ids;
  std::size_t text_begin = 0;              // in ids, of the document that is being read
  std::vector<std::size_t> document_ends;  // positions in ids
  std::vector<float> weights;              // of rows, one for each id
  std::vector<std::string> problems;       // of rows, the first ones
  std::int64_t num_problems = 0;
  std::exception_ptr error;
  bool is_done = false;
};

void check_ids(const std::vector<std::int32_t>& ids, std::size_t first, std::int64_t vocab_size) {
  for (std::size_t i = first; i < ids.size(); ++i) {
    ANABATIC_REQUIRE(ids[i] >= 0 && ids[i] < vocab_size,
                     "the tokenizer gave the id {}, but the vocabulary has {} entries", ids[i],
                     vocab_size);
  }
}

void end_document(Job& job, const TokenizeOptions& options) {
  options.ends.put_behind(job.ids, job.text_begin);
  job.document_ends.push_back(job.ids.size());
}

void tokenize_chunk(std::string_view chunk, bool begins, Job& job, const Tokenize& tokenize,
                    const TokenizeOptions& options) {
  const std::size_t first = job.ids.size();
  if (!chunk.empty()) tokenize(chunk, begins, job.ids);
  check_ids(job.ids, first, options.vocab_size);
  if (begins) job.text_begin = first + options.ends.put_before(job.ids, first);
}

// Calls body(line, line_number) for each record that is no blank line.
template <class Body>
void for_records(const Job& job, Body&& body) {
  std::size_t begin = 0;
  for (const auto& [end, line_number] : job.records) {
    const std::string_view line = std::string_view(job.text).substr(begin, end - begin);
    begin = end;
    if (!is_blank(line)) body(line, line_number);
  }
}

void run_json(Job& job, const Tokenize& tokenize, const TokenizeOptions& options) {
  for_records(job, [&](std::string_view line, std::int64_t line_number) {
    try {
      const std::string text = text_of_record(line, options.json_field);
      std::size_t offset = 0;
      do {
        const std::string_view rest = std::string_view(text).substr(offset);
        const std::size_t length = *next_chunk(rest, static_cast<std::int64_t>(offset), true);
        tokenize_chunk(rest.substr(0, length), offset == 0, job, tokenize, options);
        offset += length;
      } while (offset < text.size());
      end_document(job, options);
    } catch (const Error& error) {
      throw InvalidArgument(
          fmt::format("[data] {}:{}: {}", job.path.string(), line_number, error.what()));
    }
  });
}

void encode_one(std::string_view record, Job& job, const TokenizeOptions& options) {
  const std::size_t first = job.ids.size(), num_before = job.document_ends.size();
  try {
    OrderedJson row = parse_row(record);
    const RowKind kind = kind_of_row(row);
    ANABATIC_REQUIRE(!job.kind || kind == job.kind->kind,
                     "expected a row of {}, the kind that line {} has, got {}",
                     describe(job.kind->kind), job.kind->line, describe(kind));
    options.encode_row(std::move(row), kind, job.ids, job.weights, job.document_ends);
    check_ids(job.ids, first, options.vocab_size);
    ANABATIC_CHECK(job.ids.size() == job.weights.size(), "[data] {} ids with {} weights",
                   job.ids.size(), job.weights.size());
    ANABATIC_CHECK(job.document_ends.back() == job.ids.size(), "[data] {} ids, ends at {}",
                   job.ids.size(), job.document_ends.back());
  } catch (...) {
    job.document_ends.resize(num_before);
    job.ids.resize(first);
    job.weights.resize(first);
    throw;
  }
}

void run_rows(Job& job, const TokenizeOptions& options) {
  for_records(job, [&](std::string_view line, std::int64_t line_number) {
    try {
      encode_one(line, job, options);
    } catch (const InternalError&) {
      throw;
    } catch (const WrongForAllRows&) {
      throw;
    } catch (const Error& error) {
      if (job.num_problems++ < kMostProblems)
        job.problems.push_back(
            fmt::format("{}:{}: {}", job.path.string(), line_number, error.what()));
    }
  });
}

void run_text(Job& job, const Tokenize& tokenize, const TokenizeOptions& options) {
  try {
    tokenize_chunk(job.text, job.begins_document, job, tokenize, options);
  } catch (const Error& error) {
    throw InvalidArgument(
        fmt::format("[data] {} at byte {}: {}", job.path.string(), job.origin, error.what()));
  }
  if (job.ends_document) end_document(job, options);
}

// Threads that take jobs in order; finish() waits for one job.
class Workers {
 public:
  Workers(int count, const Tokenize& tokenize, const TokenizeOptions& options)
      : tokenize_(tokenize), options_(options) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void push(std::shared_ptr<Job> job) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
  void wait(const Job& job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.is_done; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
      if (is_stopping_) return;
      const std::shared_ptr<Job> job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      try {
        if (!job->records.empty() && options_.has_rows)
          run_rows(*job, options_);
        else
          (job->records.empty() ? run_text : run_json)(*job, tokenize_, options_);
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      job->is_done = true;
      changed_.notify_all();
    }
  }

  const Tokenize& tokenize_;
  const TokenizeOptions& options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

// Cuts the files into jobs, in order.
class JobReader {
 public:
  JobReader(std::span<const DataFile> files, const TokenizeOptions& options)
      : files_(files), options_(options) {}

  const std::string& kinds() const { return kinds_; }  // of the files with rows so far

  // Null at the end.
  std::shared_ptr<Job> next() {
    while (true) {
      if (auto job = records_ ? next_records() : chunks_ ? next_chunk_of_text() : nullptr)
        return job;
      records_.reset();
      chunks_.reset();
      if (file_ == files_.size()) return nullptr;
      open(files_[file_++]);
    }
  }

 private:
  void open(const DataFile& file) {
    path_ = file.path;
    kind_.reset();
    switch (file.format) {
      case DataFormat::kText:
        ANABATIC_REQUIRE(!options_.has_pairs, "[data] {}: expected rows of {} in JSON, got text",
                         path_.string(), describe(RowKind::kPreference));
        chunks_ = std::make_unique<TextChunkReader>(path_);
        return;
      case DataFormat::kJsonLines:
        records_ = std::make_unique<LineReader>(path_, options_.max_line_bytes);
        return;
      case DataFormat::kJson:
        records_ = std::make_unique<JsonValueReader>(path_, options_.max_line_bytes);
        return;
      case DataFormat::kTokens:
      case DataFormat::kAuto:
        throw InvalidArgument(
            fmt::format("[data] {}: expected text or JSON, got token ids", path_.string()));
    }
  }

  // An error of the reader is thrown after the errors of the records before it.
  std::shared_ptr<Job> next_records() {
    if (error_) std::rethrow_exception(error_);
    auto job = std::make_shared<Job>();
    job->path = path_;
    std::string_view record;
    try {
      while (static_cast<std::int64_t>(job->text.size()) < kChunkBytes &&
             job->records.size() < kJobRecords && records_->next(record)) {
        job->text.append(record);
        job->records.push_back({job->text.size(), records_->line_number()});
        if (options_.has_rows && !kind_ && !is_blank(record)) find_kind(record);
      }
    } catch (const Error&) {
      if (job->records.empty()) throw;
      error_ = std::current_exception();
    }
    job->kind = kind_;
    return job->records.empty() ? nullptr : job;
  }

  // The first row that has a kind tells it: those before it are bad, which is found again.
  void find_kind(std::string_view record) {
    try {
      kind_ = {kind_of_row(parse_row(record)), records_->line_number()};
    } catch (const InvalidArgument&) {
      return;
    }
    if ((kind_->kind == RowKind::kPreference) != options_.has_pairs)
      throw InvalidArgument(fmt::format(
          "[data] {}:{}: expected rows of {} (train.objective: {}), got {}", path_.string(),
          kind_->line,
          options_.has_pairs ? describe(RowKind::kPreference) : "another kind than preferences",
          options_.has_pairs ? "dpo" : "sft; dpo trains on preferences", describe(kind_->kind)));
    if (!kinds_.empty()) kinds_ += ", ";
    kinds_ += describe(kind_->kind);
  }

  std::shared_ptr<Job> next_chunk_of_text() {
    auto job = std::make_shared<Job>();
    job->path = path_;
    job->begins_document = chunks_->at_begin();
    job->origin = chunks_->offset();
    if (!chunks_->next(job->text)) return nullptr;
    job->ends_document = chunks_->at_end();
    return job;
  }

  std::span<const DataFile> files_;
  const TokenizeOptions& options_;
  std::size_t file_ = 0;
  std::filesystem::path path_;
  std::unique_ptr<RecordReader> records_;
  std::unique_ptr<TextChunkReader> chunks_;
  std::exception_ptr error_;
  std::optional<KindOfFile> kind_;  // of the open file
  std::string kinds_;
};

void write_job(const Job& job, IndexedFileWriter& writer, WeightFileWriter* weights) {
  std::size_t begin = 0;
  for (const std::size_t end : job.document_ends) {
    writer.append(std::span(job.ids).subspan(begin, end - begin));
    writer.end_document();
    begin = end;
  }
  writer.append(std::span(job.ids).subspan(begin));
  if (weights == nullptr) return;
  if (job.records.empty())
    weights->append(std::vector<float>(job.ids.size(), 1.0f));
  else
    weights->append(job.weights);
}

// Weights of an earlier write would be taken for this one's.
void remove_weights(const IndexedPaths& pair) {
  std::error_code ignored;
  std::filesystem::remove(weights_path(pair), ignored);
}

}  // namespace

TokenizeCounts tokenize_files(std::span<const DataFile> files, const Tokenize& tokenize,
                              const std::filesystem::path& output_prefix,
                              const TokenizeOptions& options) {
  ANABATIC_REQUIRE(options.vocab_size > 0, "[data] expected a vocabulary size above 0, got {}",
                   options.vocab_size);
  for (const auto* ids : {&options.ends.prefix, &options.ends.suffix})
    for (const std::int32_t id : *ids)
      ANABATIC_REQUIRE(
          id >= 0 && id < options.vocab_size,
          "[data] expected a special token's id in [0, {}), got {}; documents begin or "
          "end with it",
          options.vocab_size, id);
  ANABATIC_REQUIRE(!options.has_rows || options.encode_row != nullptr,
                   "[data] expected an encoder of rows, got none");
  const int threads = std::max(options.threads, 1);
  const IndexedPaths pair{with_suffix(output_prefix, ".bin"), with_suffix(output_prefix, ".idx")};
  IndexedFileWriter writer(output_prefix, token_type_for(options.vocab_size), options.is_durable);
  std::optional<WeightFileWriter> weights;
  if (options.has_rows) weights.emplace(pair, options.is_durable, options.has_pairs);
  RowProblems problems;
  JobReader reader(files, options);
  Workers workers(threads, tokenize, options);
  std::deque<std::shared_ptr<Job>> in_flight;
  TokenizeCounts counts;
  std::exception_ptr reader_error;  // thrown after the jobs before it, whose errors come first
  bool is_reading = true;
  while (is_reading || !in_flight.empty()) {
    if (is_reading && in_flight.size() < 2 * static_cast<std::size_t>(threads)) {
      std::shared_ptr<Job> job;
      try {
        job = reader.next();
      } catch (...) {
        reader_error = std::current_exception();
      }
      is_reading = job != nullptr;
      if (job == nullptr) continue;
      counts.text_bytes += static_cast<std::int64_t>(job->text.size());
      in_flight.push_back(job);
      workers.push(job);
      continue;
    }
    const std::shared_ptr<Job> job = std::move(in_flight.front());
    in_flight.pop_front();
    workers.wait(*job);
    if (job->error) std::rethrow_exception(job->error);
    for (const std::string& problem : job->problems) problems.add(problem);
    problems.count += job->num_problems - std::ssize(job->problems);
    write_job(*job, writer, weights ? &*weights : nullptr);
  }
  if (reader_error) std::rethrow_exception(reader_error);
  ANABATIC_REQUIRE(problems.count == 0, "[data] expected good rows, got {} bad {}:{}",
                   problems.count, problems.count == 1 ? "one" : "ones", problems.shown);
  remove_weights(pair);
  writer.finish();
  if (weights) weights->finish(writer.num_documents());
  counts.row_kinds = reader.kinds();
  counts.documents = writer.num_documents();
  counts.tokens = writer.num_tokens();
  return counts;
}

}  // namespace anabatic::io
