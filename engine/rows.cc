// SPDX-License-Identifier: Apache-2.0
#include "engine/rows.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

namespace {

void CopyRows(MatrixView<const float> from, MatrixView<float> to) {
  for (int64_t t = 0; t < from.rows; ++t) std::copy_n(from.row(t), from.cols, to.row(t));
}

std::string NameOf(const Rows& rows) { return rows.on_host() ? "the host" : fmt::format("GPU {}", rows.gpu()); }

}  // namespace

HostRows Rows::ToHost() const {
  if (on_host()) return HostRows(view_.host());
  Buffer<float> copy(view_.rows * view_.cols);
  device_->CopyToHost(view_, copy.data());
  return {std::move(copy), view_.rows, view_.cols};
}

MatrixView<const float> Rows::host() const {
  Check(on_host(), "rows of GPU {} where the host's are expected", on_host() ? 0 : gpu());
  return view_.host();
}

void KeptRows::Make(const std::shared_ptr<const RowsDevice>& device, int64_t count, int64_t hidden) {
  const int64_t size = count * hidden;
  if (size > memory_.count() || device_ != device) {
    memory_ = {};  // before the larger one is asked for
    device_ = device;
    memory_ = device == nullptr ? DeviceMemory::OnHost(size) : device->Allocate(size);
  }
  count_ = count;
  hidden_ = hidden;
}

void KeptRows::Set(const Rows& rows) {
  Make(rows.device(), rows.count(), rows.hidden());
  if (!rows.on_host()) return device_->Copy(rows.there(), there());
  CopyRows(rows.host(), there().host());
}

void KeptRows::SetThere(MatrixView<const float> rows, const Rows& alike) {
  if (alike.on_host()) return Set(rows);
  Make(alike.device(), rows.rows, rows.cols);
  device_->CopyFromHost(rows.data, there());
}

void KeptRows::SetConcatenated(const Rows& left, const Rows& right) {
  Check(left.count() == right.count() && left.device() == right.device(),
        "{} rows of {} to be concatenated with {} rows of {}, or of another model there", left.count(), NameOf(left),
        right.count(), NameOf(right));
  Make(left.device(), left.count(), left.hidden() + right.hidden());
  int64_t column = 0;
  for (const Rows* rows : {&left, &right}) {
    const DeviceMatrix<float> to = there().Cols(column, rows->hidden());
    if (rows->on_host()) {
      CopyRows(rows->host(), to.host());
    } else {
      device_->Copy(rows->there(), to);
    }
    column += rows->hidden();
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
  if (!rows.on_host()) return device_->Add(rows.there(), there());
  const MatrixView<const float> from = rows.host();
  const MatrixView<float> to = there().host();
  for (int64_t t = 0; t < count_; ++t)
    for (int64_t j = 0; j < hidden_; ++j) to(t, j) += from(t, j);
}

void KeptRows::Subtract(const Rows& rows) {
  CheckAlike(rows);
  if (!rows.on_host()) return device_->Subtract(rows.there(), there());
  const MatrixView<const float> from = rows.host();
  const MatrixView<float> to = there().host();
  for (int64_t t = 0; t < count_; ++t)
    for (int64_t j = 0; j < hidden_; ++j) to(t, j) -= from(t, j);
}

}  // namespace shiftrt
