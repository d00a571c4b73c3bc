// SPDX-License-Identifier: Apache-2.0
// What is asked for after a plan that is too large.
#include "search/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace anabatic::search {
namespace {

using ::testing::ElementsAre;

struct Answers {
  std::vector<std::optional<Answer>> answers;
  std::vector<std::int64_t> asked{};

  bool fit(std::int64_t bytes, int most_tries) {
    return search::fit(bytes, most_tries, [&](std::int64_t asked_bytes) {
      asked.push_back(asked_bytes);
      return answers[asked.size() - 1];
    });
  }
};

TEST(Fit, AsksOnceWhereThePlanFits) {
  Answers answers{{Answer{0}}};
  EXPECT_TRUE(answers.fit(100, 6));
  EXPECT_THAT(answers.asked, ElementsAre(100));
}

TEST(Fit, AsksForTwiceAsMuchLessEachTimeAndNeverForLessLess) {
  Answers answers{{Answer{10}, Answer{10}, Answer{1}, Answer{5}, Answer{-3}}};
  EXPECT_TRUE(answers.fit(200, 6));
  EXPECT_THAT(answers.asked, ElementsAre(200, 190, 170, 150, 110));
}

TEST(Fit, GoesOnFromWhatAPlanTookWhereThatIsLess) {
  Answers answers{{Answer{10, 98}, Answer{1, 80}, Answer{-1, 70}}};
  EXPECT_TRUE(answers.fit(100, 6));
  EXPECT_THAT(answers.asked, ElementsAre(100, 88, 78));
}

TEST(Fit, EndsWithoutTriesBytesOrHope) {
  Answers out_of_tries{{Answer{1}, Answer{1}, Answer{1}}}, out_of_bytes{{Answer{60}, Answer{60}}},
      hopeless{{Answer{5}, std::nullopt}};
  EXPECT_FALSE(out_of_tries.fit(100, 3));
  EXPECT_THAT(out_of_tries.asked, ElementsAre(100, 99, 97));
  EXPECT_FALSE(out_of_bytes.fit(100, 6));
  EXPECT_THAT(out_of_bytes.asked, ElementsAre(100, 40));
  EXPECT_FALSE(hopeless.fit(100, 6));
  EXPECT_THAT(hopeless.asked, ElementsAre(100, 95));
}

}  // namespace
}  // namespace anabatic::search
