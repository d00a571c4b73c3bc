// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

namespace anabatic::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ScriptJson, CannotEndTheElementThatItStandsIn) {
  const OrderedJson value{{"a", "</script><!-- <script> &amp;"}, {"</b>", 1}};
  const std::string text = script_json(value);
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos) << text;
  EXPECT_EQ(OrderedJson(parse_json(text)), OrderedJson(parse_json(show_json(value))));
}

TEST(ScriptJson, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(parse_json(script_json({{"a", "x\xff"}}))["a"], "x\xef\xbf\xbd");
}

TEST(HtmlText, EndsNoTagAndNoAttribute) {
  EXPECT_EQ(html_text("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
}

TEST(Page, NamesNoAddressAndLoadsNothing) {
  const std::string text = page("a <title>", {{"runs", OrderedJson::array()}});
  EXPECT_THAT(text, HasSubstr("<title>a &lt;title&gt;</title>"));
  EXPECT_THAT(text, HasSubstr("default-src 'none'"));
  for (const char* word :
       {"http:", "https:", "//www", "src=", "@import", "url(", "<link", "fetch("})
    EXPECT_THAT(text, Not(HasSubstr(word)));
}

}  // namespace
}  // namespace anabatic::report
