// SPDX-License-Identifier: Apache-2.0
// The HTML page around the data. Style and scripts are inside; nothing is loaded.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace anabatic::report {

// JSON that is safe inside <script>: no text in it can end the element or begin a comment.
std::string script_json(const nlohmann::ordered_json& value);

// Escapes text between tags.
std::string html_text(std::string_view text);

std::string page(const std::string& title, const nlohmann::ordered_json& data);

// Parts of the page, in their order; one source file each.
const char* style();
const char* draw_script();    // axes, lines, tooltips
const char* charts_script();  // each chart
const char* page_script();    // tables and the order of the parts

}  // namespace anabatic::report
