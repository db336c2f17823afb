// A copy of the residual stream: the decoder updates its own in place.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/tensor.h"

namespace shiftrt {

class StreamCopy {
 public:
  void Set(MatrixView<const float> h) {
    rows_ = h.rows;
    cols_ = h.cols;
    data_.Reserve(rows_ * cols_);
    for (int64_t t = 0; t < rows_; ++t) std::copy_n(h.row(t), cols_, data_.data() + t * cols_);
  }
  void Add(MatrixView<const float> h) {
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t j = 0; j < cols_; ++j) data_[t * cols_ + j] += h(t, j);
  }
  void Subtract(MatrixView<const float> h) {
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t j = 0; j < cols_; ++j) data_[t * cols_ + j] -= h(t, j);
  }
  MatrixView<const float> view() const { return {data_.data(), rows_, cols_}; }

 private:
  Buffer<float> data_;
  int64_t rows_ = 0, cols_ = 0;
};

}  // namespace shiftrt
