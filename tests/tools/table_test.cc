// SPDX-License-Identifier: Apache-2.0
#include "tools/table.h"

#include <gtest/gtest.h>

#include <limits>

namespace shiftrt {
namespace {

TEST(Table, ContinuationsKeepTheirLines) {
  EXPECT_EQ(Indented(" Paris."), "  Paris.");
  EXPECT_EQ(Indented("\n    return x\n\nprint(f(1))\n\n"), "\n        return x\n\n    print(f(1))");
  EXPECT_EQ(Indented(" 1\n 2"), "  1\n     2");
  EXPECT_EQ(Indented(""), "");
  EXPECT_EQ(Indented("\n\n"), "");
}

TEST(Table, AnErrorThatIsNotThereIsNotShown) {
  EXPECT_EQ(PlusMinus(0.125, 2), " ± 0.12");
  EXPECT_EQ(PlusMinus(std::numeric_limits<double>::quiet_NaN(), 2), "");
}

}  // namespace
}  // namespace shiftrt
