// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/upload.h"

#include <numeric>

#include "tests/cuda/fixture.h"

namespace shiftrt::gpu {
namespace {

class UploadOnGpu : public CudaTest {};

// Sources are changed as soon as that is allowed, the pinned buffers are reused many times, and other copies in the
// stream keep their order.
TEST_F(UploadOnGpu, EveryByteArrivesThoughPiecesAreUsedAgain) {
  Uploader uploader(stream_, 96);
  const DeviceBuffer<uint16_t> there(stream_, 5000, "a test");
  std::vector<uint16_t> expected(5000), source;
  std::iota(expected.begin(), expected.end(), uint16_t{1});
  int64_t at = 0;
  for (const int64_t count : {1, 48, 47, 49, 0, 1000, 3855}) {
    source.assign(expected.begin() + at, expected.begin() + at + count);
    uploader.Copy(there.data() + at, source.data(), count * 2);
    std::fill(source.begin(), source.end(), uint16_t{0});
    at += count;
  }
  ASSERT_EQ(at, 5000);
  EXPECT_EQ(Output<uint16_t>::Fetch(stream_, there), expected);
  FillBytes(stream_, there.data(), 0, 2);
  EXPECT_EQ(Output<uint16_t>::Fetch(stream_, there)[0], 0);
}

}  // namespace
}  // namespace shiftrt::gpu
