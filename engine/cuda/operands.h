// SPDX-License-Identifier: Apache-2.0
// Finds the operands of gradients (engine/ops.h) in GPU memory: tensors of the model in the copy that
// decoders share, those of a plan in copies of their own, trained ones where they are.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/cuda/weights.h"
#include "engine/ops.h"

namespace shiftrt {

// A vector in float32.
struct DeviceVector {
  const float* data = nullptr;
  bool offset_added = false;  // true for a norm's weights to which the family's offset was added
};

// A stored matrix: dense and in its own type, or the planes of a quantised one (kernels/cuda/blocks.h), of which these
// are the rows from `first` on of so many.
struct StoredMatrix {
  gpu::ConstDeviceArray array;
  int64_t matrix_rows = 0, first = 0;
};

class DeviceOperands {
 public:
  DeviceOperands(std::shared_ptr<const Weights> weights, std::shared_ptr<DeviceWeights> device);

  // The first use of a half of a block uploads it. Throws Error for a matrix that is neither of the model's type nor
  // float32, nor quantised in a model of bfloat16.
  StoredMatrix Matrix(const TensorView& stored);
  // Null for an operand that is empty.
  DeviceVector Vector(const Operand& operand);

 private:
  // Adds what is at `tensor` on the host to the table, if the block has it.
  void Place(const TensorView& tensor, gpu::ConstDeviceArray at);
  // A matrix that is the rows from `first` on of a part of `joined`.
  void PlaceRows(const TensorView& tensor, const DeviceWeight& joined, int64_t part = 0, int64_t first = 0);
  // Uploads the half of the model's block that has this tensor, or the tensor itself.
  void Upload(const TensorView& tensor);
  void PlaceAttention(int64_t layer);
  void PlaceDelta(const BlockWeights& block, const DeviceDelta& delta);
  void PlaceMlp(int64_t layer);
  void PlaceMixture(const BlockWeights& block, const DeviceMixture& mixture);
  const StoredMatrix& Find(const TensorView& tensor);

  struct Home {
    int64_t layer;
    Halves half;
    bool norm;
  };
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<DeviceWeights> device_;
  std::map<const void*, Home> homes_;              // by the data of the model's tensors
  std::map<const void*, StoredMatrix> placed_;     // by the data on the host
  std::vector<gpu::DeviceBuffer<std::byte>> own_;  // tensors of plans
  std::vector<DeviceWeight> own_quantised_;
};

}  // namespace shiftrt
