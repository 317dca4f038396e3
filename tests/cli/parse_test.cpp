#include "parse.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "vcattn/types.hpp"

namespace vcattn::cli {
namespace {

TEST(Parse, IntegersInRange) {
  EXPECT_EQ(parse_integer("--n", "42", 0, 100), 42);
  EXPECT_EQ(parse_integer("--n", "-3", -5, 5), -3);
  for (char const* text : {"", " 1", "1 ", "1.5", "0x10", "101", "-1", "9999999999999999999999", "abc", "+1"}) {
    EXPECT_THROW(parse_integer("--n", text, 0, 100), Error) << text;
  }
}

TEST(Parse, Lists) {
  EXPECT_EQ(parse_integers("--grid", "1,2,3", 3, 0, 9), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(parse_words("--recipes", "vc8,fp8"), (std::vector<std::string>{"vc8", "fp8"}));
  for (char const* text : {"", ",", "1,2", "1,2,3,", ",1,2", "1,,2", "1,2,3,4", "1;2;3"}) {
    EXPECT_THROW(parse_integers("--grid", text, 3, 0, 9), Error) << text;
  }
}

TEST(Parse, OneLine) {
  EXPECT_EQ(one_line("a\nb\r\n\tc\n"), "a b c");
  EXPECT_EQ(one_line("plain text"), "plain text");
}

RC_GTEST_PROP(Parse, EveryIntegerSurvivesItsText, (std::int64_t value)) {
  RC_ASSERT(parse_integer("--n", std::to_string(value), std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max()) == value);
}

RC_GTEST_PROP(Parse, AnyTextGivesAListOrAnError, (std::string const& text)) {
  try {
    auto const values = parse_integers("--grid", text, 0, -100, 100);
    for (std::int64_t const value : values) RC_ASSERT(value >= -100 && value <= 100);
  } catch (Error const& error) {
    RC_ASSERT(error.code() == ErrorCode::invalid_argument);
  }
}

RC_GTEST_PROP(Parse, OneLineHasNoControlCharacters, (std::string const& text)) {
  for (char const c : one_line(text)) RC_ASSERT(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
}

TEST(Parse, ShortenedCutsBetweenCharacters) {
  EXPECT_EQ(shortened("short"), "short");
  EXPECT_EQ(shortened(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(shortened(std::string(201, 'a')), std::string(200, 'a') + "...");
  EXPECT_EQ(shortened("a\xC3\xA4", 2), "a...");
}

}  // namespace
}  // namespace vcattn::cli
