// SPDX-License-Identifier: Apache-2.0
#include "engine/rows.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

namespace {

// Memory of the host, handed out as a GPU's is.
std::shared_ptr<float> AllocateOnHost(int64_t count) {
  auto buffer = std::make_shared<Buffer<float>>(count);
  float* const data = buffer->data();
  return {std::move(buffer), data};
}

std::string NameOf(const Rows& rows) { return rows.on_host() ? "the host" : fmt::format("GPU {}", rows.gpu()); }

}  // namespace

HostRows Rows::ToHost() const {
  if (on_host()) return HostRows(view_);
  Buffer<float> copy(view_.rows * view_.cols);
  device_->CopyToHost(view_.data, copy.size(), copy.data());
  return {std::move(copy), view_.rows, view_.cols};
}

MatrixView<const float> Rows::host() const {
  Check(on_host(), "rows of GPU {} where the host's are expected", on_host() ? 0 : gpu());
  return view_;
}

void KeptRows::Set(const Rows& rows) {
  const MatrixView<const float> from = rows.there();
  const int64_t size = from.rows * from.cols;
  if (size > capacity_ || device_ != rows.device()) {
    data_.reset();  // before the larger one is asked for
    capacity_ = 0;
    device_ = rows.device();
    data_ = rows.on_host() ? AllocateOnHost(size) : device_->Allocate(size);
    capacity_ = size;
  }
  count_ = from.rows;
  hidden_ = from.cols;
  if (!rows.on_host()) return device_->Copy(from.data, size, data_.get());
  for (int64_t t = 0; t < from.rows; ++t) std::copy_n(from.row(t), from.cols, data_.get() + t * from.cols);
}

void KeptRows::CheckAlike(const Rows& rows) const {
  Check(rows.count() == count_ && rows.hidden() == hidden_, "rows ({}, {}) to be combined with rows ({}, {})",
        rows.count(), rows.hidden(), count_, hidden_);
  Check(rows.device() == device_, "rows of {} to be combined with rows of {} or of another model there", NameOf(rows),
        NameOf(this->rows()));
}

void KeptRows::Add(const Rows& rows) {
  CheckAlike(rows);
  const MatrixView<const float> from = rows.there();
  if (!rows.on_host()) return device_->Add(from.data, count_ * hidden_, data_.get());
  for (int64_t t = 0; t < count_; ++t)
    for (int64_t j = 0; j < hidden_; ++j) data_.get()[t * hidden_ + j] += from(t, j);
}

void KeptRows::Subtract(const Rows& rows) {
  CheckAlike(rows);
  const MatrixView<const float> from = rows.there();
  if (!rows.on_host()) return device_->Subtract(from.data, count_ * hidden_, data_.get());
  for (int64_t t = 0; t < count_; ++t)
    for (int64_t j = 0; j < hidden_; ++j) data_.get()[t * hidden_ + j] -= from(t, j);
}

}  // namespace shiftrt
