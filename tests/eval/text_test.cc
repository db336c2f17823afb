// SPDX-License-Identifier: Apache-2.0
// Against what Python 3.11 gives.
#include "eval/harness/text.h"

#include <gtest/gtest.h>

#include "eval/harness/python_random.h"

namespace shiftrt {
namespace {

TEST(Text, StripsPythonsWhiteSpace) {
  EXPECT_EQ(Strip(" \t\n\x1c\u00a0\u3000 a b \u2028\x1f\r"), "a b");
  EXPECT_EQ(Strip("\u200b a"), "\u200b a");  // zero-width space is none
  EXPECT_EQ(StripRight("  caf\u00e9 "), "  caf\u00e9");
  EXPECT_EQ(StripLeft(" \u00e9 "), "\u00e9 ");
  EXPECT_EQ(Strip(" \u2003 "), "");
  EXPECT_EQ(Strip(""), "");
}

// The code point U+00A0 is white space; a byte 0xA0 alone is no character, and neither is a row of such bytes.
TEST(Text, BytesThatAreNoCharacterAreNoWhiteSpace) {
  for (const std::string bytes : {"\xA0", "\x85", "\xE3\x80", "\xE3\x80\xE3"}) {
    EXPECT_EQ(Strip(" " + bytes + " "), bytes);
    EXPECT_EQ(SplitWords("a" + bytes + "b"), 1);
  }
  const std::string many(40, '\x98');
  EXPECT_EQ(StripRight(many + " "), many);
}

TEST(Text, CapitalizesTheFirstAndLowersTheRest) {
  EXPECT_EQ(Capitalize("the COOK And"), "The cook and");
  EXPECT_EQ(Capitalize("\u00e9TOILE \u00c9"), "\u00c9toile \u00e9");
  EXPECT_EQ(Capitalize(" The"), " the");
  EXPECT_EQ(Capitalize("\u01c6x"), "\u01c5x");  // title case, not upper case
  EXPECT_EQ(Capitalize(""), "");
}

TEST(Text, CountsAsPythonDoes) {
  EXPECT_EQ(CodePoints("caf\u00e9 \U0001f600"), 6);
  EXPECT_EQ(CodePoints(""), 0);
  EXPECT_EQ(SplitWords("a b"), 2);
  EXPECT_EQ(SplitWords(" a  b\n"), 4);
  EXPECT_EQ(SplitWords(""), 1);
}

// random.Random(1234): [r.getrandbits(32) for _ in range(3)], then r.sample(range(n), k).
TEST(PythonRandom, DrawsWhatPythonDraws) {
  PythonRandom bits(1234);
  EXPECT_EQ(bits.Bits(32), 4150886329u);
  EXPECT_EQ(bits.Bits(32), 3342196574u);
  EXPECT_EQ(bits.Bits(32), 1892932127u);
  PythonRandom random(1234);
  EXPECT_EQ(random.Sample(20, 5), (std::vector<int64_t>{14, 3, 0, 2, 1}));
  EXPECT_EQ(random.Sample(1000, 3), (std::vector<int64_t>{687, 709, 85}));
  EXPECT_EQ(random.Sample(80, 8), (std::vector<int64_t>{12, 45, 30, 2, 3, 76, 44, 61}));
  EXPECT_EQ(random.Sample(90, 8), (std::vector<int64_t>{78, 59, 19, 11, 23, 14, 1, 64}));
  // Past one refill of the generator's 624 words.
  for (int i = 0; i < 700; ++i) bits.Bits(32);
  EXPECT_EQ(bits.Bits(32), 1099085600u);
}

}  // namespace
}  // namespace shiftrt
