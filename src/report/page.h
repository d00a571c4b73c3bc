// SPDX-License-Identifier: Apache-2.0
// The HTML page around the data: style and scripts stand in it, nothing is loaded.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace anabatic::report {

// JSON that may stand inside <script>: no text of it can end the element or begin a comment.
std::string script_json(const nlohmann::ordered_json& value);

// For text between tags.
std::string html_text(std::string_view text);

std::string page(const std::string& title, const nlohmann::ordered_json& data);

// Parts of the page, in their order; one source file each.
const char* style();
const char* draw_script();    // axes, lines, tooltips
const char* charts_script();  // each picture
const char* page_script();    // tables and the order of things

}  // namespace anabatic::report
