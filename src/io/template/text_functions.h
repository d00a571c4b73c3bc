// SPDX-License-Identifier: Apache-2.0
// What methods of str and filters share. All keep the sources of their characters.
#pragma once
#include "io/template/interpreter.h"
#include "io/template/python_text.h"

namespace anabatic::io::jinja {

Value stripped(Interpreter& in, const Value& text, const Value& chars, bool left, bool right);
Value in_case(Interpreter& in, const Value& text, Case wanted);
Value capitalized(Interpreter& in, const Value& text);
Value replaced(Interpreter& in, const Value& text, const Value& from, const Value& to,
               const Value& count);
Value joined(Interpreter& in, const Value& separator, std::span<const Value> items, bool takes_all);
std::vector<Value> lines_of(Interpreter& in, const Value& text, bool keeps_ends);
bool is_all_in_case(std::string_view text, bool upper);  // islower(), isupper()

void write_json(Interpreter& in, TextBuilder& builder, const Value& value,
                const Value& ensure_ascii, const Value& indent, const Value& separators,
                const Value& sort_keys);

}  // namespace anabatic::io::jinja
