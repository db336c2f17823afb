// SPDX-License-Identifier: Apache-2.0
// Memory that may be a GPU's cannot be read by accident: not at compile time, and not when the program runs.
#include "engine/device_matrix.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "engine/rows.h"

namespace shiftrt {
namespace {

template <typename View>
concept Readable = requires(const View& view) {
  view(0, 0);
}
|| requires(const View& view) { *view.row(0); }
|| requires(const View& view) { *view.data; }
|| requires(const View& view) { view[0]; }
|| requires(const View& view) { *view; };
static_assert(Readable<MatrixView<float>>);
static_assert(!Readable<DeviceMatrix<float>> && !Readable<DeviceMatrix<const float>>);
static_assert(!Readable<DeviceMemory> && !Readable<Rows>);
static_assert(!std::is_convertible_v<DeviceMatrix<float>, MatrixView<float>>);
static_assert(!std::is_constructible_v<MatrixView<float>, DeviceMatrix<float>>);
static_assert(!std::is_constructible_v<MatrixView<const float>, DeviceMatrix<float>>);
static_assert(!std::is_convertible_v<DeviceMatrix<const float>, DeviceMatrix<float>>);
static_assert(std::is_convertible_v<MatrixView<float>, DeviceMatrix<const float>>);

template <typename Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(DeviceMatrix, GivesAViewOnlyWhereTheMemoryIs) {
  float memory[12] = {};
  const DeviceMatrix<float> here(MatrixView<float>(memory, 3, 4)),
      there(MatrixView<float>(memory, 3, 4), Device::kCuda);
  EXPECT_EQ(here.host().data, memory);
  EXPECT_EQ(there.on_gpu().data, memory);
  EXPECT_EQ(MessageOf([&] { there.host(); }),
            "a matrix of (3, 4) is in the memory of a GPU, expected that of the host");
  EXPECT_EQ(MessageOf([&] { here.on_gpu(); }),
            "a matrix of (3, 4) is in the memory of the host, expected that of a GPU");
  EXPECT_EQ(DeviceMatrix<float>().host().data, nullptr);
  EXPECT_EQ(DeviceMatrix<float>().on_gpu().data, nullptr);
}

TEST(DeviceMatrix, PartsStayInTheMemoryAndWithinIt) {
  const DeviceMemory memory = DeviceMemory::OnHost(12);
  const DeviceMatrix<float> whole = memory.matrix(3, 4);
  EXPECT_EQ(whole.Rows(1, 2).host().data, whole.host().row(1));
  EXPECT_EQ(whole.Cols(2, 2).host().row(1), whole.host().row(1) + 2);
  EXPECT_EQ(memory.Part(5, 1, 7).host().data, whole.host().data + 5);
  const DeviceMatrix<float> there(MatrixView<float>(whole.host().data, 3, 4), Device::kCuda);
  for (const DeviceMatrix<float>& part : {there.Rows(1, 2), there.Cols(1, 2), there.Part(3, 1, 2)})
    EXPECT_EQ(part.device(), Device::kCuda);
  EXPECT_EQ(MessageOf([&] { memory.Part(6, 1, 7); }),
            "a matrix of (1, 7) from element 6 on does not fit memory of (1, 12)");
}

}  // namespace
}  // namespace shiftrt
