// SPDX-License-Identifier: Apache-2.0
#include "runtime/check.h"

#include <gtest/gtest.h>

namespace shiftrt {
namespace {

TEST(Check, AUsageErrorCarriesTheFieldAtFault) {
  try {
    FailUsage(Field("rank"), "{} is above the hidden size {}", 65, 64);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.field(), "rank");
    EXPECT_EQ(error.reason(), "65 is above the hidden size 64");
    EXPECT_STREQ(error.what(), "rank: 65 is above the hidden size 64");
  }
}

TEST(Check, AUsageErrorMayBeAboutNoSingleField) {
  try {
    FailUsage("{} and {} exclude each other", "load", "save");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.field(), "");
    EXPECT_EQ(error.reason(), "load and save exclude each other");
    EXPECT_EQ(error.what(), error.reason());
  }
}

}  // namespace
}  // namespace shiftrt
