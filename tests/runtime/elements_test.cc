// SPDX-License-Identifier: Apache-2.0
#include "runtime/elements.h"

#include <gtest/gtest.h>

namespace shiftrt {
namespace {

TEST(Elements, EveryTypeOfAModelIsVisitedAsItself) {
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    EXPECT_EQ(WithType(type, []<typename T>(std::type_identity<T>) { return DTypeOf<T>::value; }), type);
  EXPECT_THROW(WithType(DType::kFloat64, [](auto) {}), Error);
}

TEST(Elements, ATensorIsReadInItsType) {
  const BFloat16 values[] = {BFloat16(1.5f), BFloat16(-2)};
  const float sum = WithElements({values, DType::kBFloat16, {2}},
                                 [](const auto* x) { return static_cast<float>(x[0]) + static_cast<float>(x[1]); });
  EXPECT_EQ(sum, -0.5f);
}

}  // namespace
}  // namespace shiftrt
