// SPDX-License-Identifier: Apache-2.0
#include "cli/check_template.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "io/chat/chat_format.h"

namespace anabatic::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConversations = R"json([
  {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]},
  {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " it's \"so\"\n"},
                {"role": "assistant", "content": "Ünïcode 🙂\n"}, {"role": "user", "content": "more"},
                {"role": "assistant", "content": ""}]},
  {"messages": [{"role": "user", "content": "think"},
                {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}]},
  {"messages": [{"role": "user", "content": "weather?"},
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function":
                  {"name": "weather", "arguments": {"place": "Rome", "days": 2}}}]},
                {"role": "tool", "content": "{\"t\": 21.5}"}, {"role": "assistant", "content": "Warm."}],
   "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters":
     {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}}}]},
  {"messages": [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "twice"}]}
])json";

// Exit code 3: there is no transformers. Dates are those of our rendering's day.
constexpr const char* kCompare = R"python(
import json, sys
try:
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError:
    sys.exit(3)
data = json.load(open(sys.argv[1]))
different = 0
for i, case in enumerate(data["cases"]):
    row = case["row"]
    try:
        text = render_jinja_template([row["messages"]], tools=row.get("tools"), chat_template=data["template"],
                                     add_generation_prompt=case["prompt"], **data["tokens"])[0][0]
    except Exception as error:
        text, case_error = None, f"{type(error).__name__}: {error}"
    if text == case["text"]:
        continue
    different += 1
    print(f"conversation {i // 2 + 1}, add_generation_prompt {case['prompt']}:")
    print("  jinja2   ", repr(text) if text is not None else case_error)
    print("  anabatic ", repr(case["text"]) if case["text"] is not None else case["error"])
print(f"{len(data['cases'])} renderings compared with jinja2, {different} differ")
sys.exit(1 if different else 0)
)python";

// A folder that is gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "anabatic-template-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw ResourceError("[check] no temporary folder could be made: " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  fs::path path() const { return path_; }

 private:
  std::string path_;
};

// Its exit code; 127 if the program is not there.
int run_program(const std::string& program, const std::string& script, const std::string& file) {
  flush_output();
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp(program.c_str(), program.c_str(), script.c_str(), file.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child)
    throw ResourceError("[check] " + program + " could not be started");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int check_template(const std::string& model, const std::string& template_file,
                   const std::string& python) {
  const io::ChatFormat format = io::ChatFormat::load(model, template_file);
  OrderedJson cases = OrderedJson::array();
  for (const OrderedJson& row : OrderedJson::parse(kConversations)) {
    for (const bool prompt : {false, true}) {
      OrderedJson& item = cases.emplace_back(
          OrderedJson{{"row", row}, {"prompt", prompt}, {"text", nullptr}, {"error", nullptr}});
      try {
        item["text"] = format.render(row, prompt).rendered.text;
      } catch (const Error& error) {
        item["error"] = error.what();
      }
    }
  }
  const TemporaryFolder folder;
  const fs::path script = folder.path() / "compare.py", file = folder.path() / "cases.json";
  write_file_atomically(script, kCompare);
  write_file_atomically(file, dump_json(OrderedJson{{"template", format.source()},
                                                    {"tokens", format.named_tokens()},
                                                    {"cases", cases}}));
  const int code = run_program(python, script.string(), file.string());
  if (code != 3 && code != 127) return code;
  print_output(
      "{} has no transformers to compare with; what the template makes of {} conversations:\n",
      python, cases.size() / 2);
  for (const OrderedJson& item : cases)
    print_output("--- add_generation_prompt {}\n{}\n", item["prompt"].get<bool>(),
                 (item["text"].is_null() ? item["error"] : item["text"]).get<std::string>());
  return 0;
}

}  // namespace anabatic::cli
