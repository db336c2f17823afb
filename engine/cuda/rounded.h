// SPDX-License-Identifier: Apache-2.0
// Copies of float32 rows in a 16-bit type, for products and attention. Several of them read the same rows: the
// queries', keys' and values' projections and their LoRAs one input, the gradients of a projection's input, weights and
// LoRA one gradient. A copy is kept until its rows are written, so that they are rounded once.
#pragma once

#include <array>

#include "engine/cuda/scratch.h"
#include "runtime/tensor.h"

namespace shiftrt {

class RoundedCopies {
 public:
  // Attention's gradient reads five, and the rows of a block that are read again later are among these. With six, a
  // block of the tests rounds four times more.
  static constexpr int kCopies = 8;

  // Dense; if there is a copy of rows among which these are, a part of it. Valid until the rows are written, or kCopies
  // - 1 others have been asked for.
  gpu::ConstDeviceArray Of(gpu::Stream stream, MatrixView<const float> rows, DType type);
  // The place for what the caller computes as the copy of `rows`, which it then writes with the same values.
  gpu::DeviceArray For(gpu::Stream stream, MatrixView<const float> rows, DType type);
  // Copies of these rows, or of a part of them, are no longer valid. To be said after the write.
  void Written(MatrixView<const float> rows);
  void Clear();

 private:
  struct Copy {
    MatrixView<const float> of;  // null: free
    int64_t used = 0;            // when it was asked for last
    Scratch memory;
  };

  std::array<Copy, kCopies> copies_;
  int64_t asked_ = 0;
};

}  // namespace shiftrt
