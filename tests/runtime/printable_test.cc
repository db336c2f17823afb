// SPDX-License-Identifier: Apache-2.0
#include "runtime/printable.h"

#include <gtest/gtest.h>

namespace shiftrt {
namespace {

TEST(Printable, KeepsWhatAPersonReads) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("model.layers.0 \"a\" \\ \xC3\xA9 \xF0\x9F\x98\x80"),
            "model.layers.0 \"a\" \\ \xC3\xA9 \xF0\x9F\x98\x80");
}

TEST(Printable, EscapesWhatATerminalObeysAndWhatNobodySees) {
  EXPECT_EQ(Printable("\x1B[2J\r\n\t\x7F"), "\\x1b[2J\\r\\n\\t\\x7f");
  EXPECT_EQ(Printable("\xC2\x9B"), "\\x9b");  // the control sequence introducer of C1
  EXPECT_EQ(Printable("a\xE2\x80\xAE"
                      "b"),
            "a\\u202eb");  // writes from right to left
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xFF\xC0\x80\xED\xA0\x80"), "\\xff\\xc0\\x80\\xed\\xa0\\x80");
  EXPECT_EQ(Printable("\xE2\x80"), "\\xe2\\x80");  // an incomplete character
}

TEST(Printable, CutsAtACharacter) {
  EXPECT_EQ(Printable(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(Printable(std::string(10 << 20, 'a')), std::string(200, 'a') + "... (10485760 bytes)");
  EXPECT_EQ(Printable("abc\xC3\xA9"
                      "de",
                      4),
            "abc\xC3\xA9... (7 bytes)");
}

TEST(Printable, LinesOfAMessageStay) { EXPECT_EQ(PrintableLines("a\nb\x1B", 100), "a\nb\\x1b"); }

}  // namespace
}  // namespace shiftrt
