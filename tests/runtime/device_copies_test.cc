// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_copies.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/check.h"
#include "runtime/context.h"

namespace shiftrt {
namespace {

class Copies : public testing::Test {
 protected:
  std::shared_ptr<std::string> Get(const std::shared_ptr<const int>& source, int device) {
    return copies_->Get<std::string>(source, device, [&] {
      ++made_;
      return std::make_shared<std::string>(std::to_string(*source));
    });
  }
  std::shared_ptr<DeviceCopies> copies_ = MakeDeviceCopies();
  int made_ = 0;
};

TEST_F(Copies, AreOfOneSourceOnOneDevice) {
  const auto first = std::make_shared<const int>(1), second = std::make_shared<const int>(2);
  const auto copy = Get(first, 0);
  EXPECT_EQ(Get(first, 0), copy);
  EXPECT_NE(Get(first, 1), copy);
  EXPECT_EQ(*Get(second, 0), "2");
  EXPECT_EQ(made_, 3);
  // Two objects with one owner are two sources.
  const auto pair = std::make_shared<const std::pair<int, int>>(3, 4);
  EXPECT_EQ(*Get({pair, &pair->first}, 0), "3");
  EXPECT_EQ(*Get({pair, &pair->second}, 0), "4");
}

TEST_F(Copies, GoWithTheirSources) {
  alignas(int) std::byte place[sizeof(int)];
  const auto at_one_address = [&](int value) {
    return std::shared_ptr<const int>(new (place) int(value), [](const int*) {});
  };
  auto source = at_one_address(5);
  const std::weak_ptr<std::string> copy = Get(source, 0);
  EXPECT_FALSE(copy.expired());
  source.reset();
  source = at_one_address(6);
  EXPECT_EQ(*Get(source, 0), "6");
  EXPECT_TRUE(copy.expired());
}

TEST_F(Copies, ThatCannotBeMadeAreNotRemembered) {
  const auto source = std::make_shared<const int>(8);
  const auto fail = [&]() -> std::shared_ptr<std::string> { Fail("no room"); };
  EXPECT_THROW(copies_->Get<std::string>(source, 0, fail), Error);
  EXPECT_EQ(*Get(source, 0), "8");
}

TEST(Context, SharesItsCopiesWithItsCopies) {
  const Context context = Context::Default();
  EXPECT_NE(context.device_copies, nullptr);
  EXPECT_EQ(context.WithGpu(0).device_copies, context.device_copies);
  EXPECT_NE(Context::Default().device_copies, context.device_copies);
}

}  // namespace
}  // namespace shiftrt
