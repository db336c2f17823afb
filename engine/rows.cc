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

void KeptRows::Make(const std::shared_ptr<const RowsDevice>& device, int64_t count, int64_t hidden) {
  const int64_t size = count * hidden;
  if (size > capacity_ || device_ != device) {
    data_.reset();  // before the larger one is asked for
    capacity_ = 0;
    device_ = device;
    data_ = device == nullptr ? AllocateOnHost(size) : device->Allocate(size);
    capacity_ = size;
  }
  count_ = count;
  hidden_ = hidden;
}

void KeptRows::Set(const Rows& rows) {
  const MatrixView<const float> from = rows.there();
  Make(rows.device(), from.rows, from.cols);
  if (!rows.on_host()) return device_->Copy(from.data, from.rows * from.cols, data_.get());
  for (int64_t t = 0; t < from.rows; ++t) std::copy_n(from.row(t), from.cols, data_.get() + t * from.cols);
}

void KeptRows::SetThere(MatrixView<const float> rows, const Rows& alike) {
  if (alike.on_host()) return Set(rows);
  Make(alike.device(), rows.rows, rows.cols);
  device_->CopyFromHost(rows.data, rows.rows * rows.cols, data_.get());
}

void KeptRows::SetBeside(const Rows& left, const Rows& right) {
  Check(left.count() == right.count() && left.device() == right.device(),
        "{} rows of {} to be put beside {} rows of {}, or of another model there", left.count(), NameOf(left),
        right.count(), NameOf(right));
  Make(left.device(), left.count(), left.hidden() + right.hidden());
  float* to = data_.get();
  for (const Rows* rows : {&left, &right}) {
    const MatrixView<const float> from = rows->there();
    if (rows->on_host()) {
      for (int64_t t = 0; t < from.rows; ++t) std::copy_n(from.row(t), from.cols, to + t * hidden_);
    } else {
      device_->CopyColumns(from, to, hidden_);
    }
    to += from.cols;
  }
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
