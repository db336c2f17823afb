// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <algorithm>
#include <cstring>

#include "tests/kernels/oracle.h"

namespace shiftrt {
namespace {

TEST(Dropout, DropsTheProportionAskedForAndScalesTheRest) {
  const Matrix<float> x(300, 70), out(300, 70), again(300, 70);
  for (float& value : x.span()) value = 1;
  ApplyDropout(Context{1, BestIsa()}, {.key = 9, .probability = 0.25f}, x.view(), out.view());
  ApplyDropout(Context{3, BestIsa()}, {.key = 9, .probability = 0.25f}, x.view(), again.view());
  EXPECT_EQ(std::memcmp(out.data(), again.data(), sizeof(float) * out.size()), 0);
  const auto dropped = std::ranges::count(out.span(), 0.0f);
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(out.size()), 0.25, 0.012);  // four standard deviations
  EXPECT_EQ(std::ranges::count(out.span(), 1 / 0.75f), out.size() - dropped);
  ApplyDropout(Context{1, BestIsa()}, {.key = 10, .probability = 0.25f}, x.view(), again.view());
  int64_t both = 0;
  for (int64_t i = 0; i < out.size(); ++i) both += out.span()[i] == 0 && again.span()[i] == 0;
  EXPECT_NEAR(static_cast<double>(both) / static_cast<double>(out.size()), 0.0625, 0.007);
}

}  // namespace
}  // namespace shiftrt
