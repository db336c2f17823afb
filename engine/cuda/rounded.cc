// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rounded.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "kernels/cuda/rowwise.h"

namespace shiftrt {

namespace {

const float* EndOf(const MatrixView<const float>& rows) { return rows.row(rows.rows - 1) + rows.cols; }

bool Overlap(const MatrixView<const float>& a, const MatrixView<const float>& b) {
  const std::less<const float*> before;
  return a.rows > 0 && b.rows > 0 && before(a.data, EndOf(b)) && before(b.data, EndOf(a));
}

bool Same(const MatrixView<const float>& a, const MatrixView<const float>& b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

// True if the rows are some of `all`.
bool Contains(const MatrixView<const float>& all, const MatrixView<const float>& rows) {
  if (Same(all, rows)) return true;
  if (all.data == nullptr || rows.rows == 0 || all.cols != rows.cols || all.stride != rows.stride) return false;
  const std::less<const float*> before;
  return !before(rows.data, all.data) && !before(EndOf(all), EndOf(rows)) && (rows.data - all.data) % rows.stride == 0;
}

}  // namespace

gpu::ConstDeviceArray RoundedCopies::Of(gpu::Stream stream, MatrixView<const float> rows, DType type) {
  for (Copy& copy : copies_) {
    if (!Contains(copy.of, rows)) continue;
    copy.used = ++asked_;
    const gpu::DeviceArray all = copy.memory.Get(stream, copy.of.rows * copy.of.cols, type);
    const int64_t first = (rows.data - copy.of.data) / std::max<int64_t>(1, rows.stride) * rows.cols;
    return {static_cast<std::byte*>(all.data) + first * static_cast<int64_t>(SizeOf(type)), type};
  }
  const gpu::DeviceArray rounded = For(stream, rows, type);
  gpu::CopyRows(stream, rows, {rounded, rows.rows, rows.cols});
  return rounded;
}

// The smallest free place that has room, or the largest free one, or the place that was asked for least recently.
gpu::DeviceArray RoundedCopies::For(gpu::Stream stream, MatrixView<const float> rows, DType type) {
  for (Copy& copy : copies_)
    if (Same(copy.of, rows)) copy.of = {};
  const int64_t bytes = rows.rows * rows.cols * static_cast<int64_t>(SizeOf(type));
  const auto rank = [&](const Copy& copy) {
    if (copy.of.data != nullptr) return std::tuple(2, copy.used);
    const int64_t room = copy.memory.bytes();
    return room >= bytes ? std::tuple(0, room) : std::tuple(1, -room);
  };
  Copy& place = *std::min_element(copies_.begin(), copies_.end(),
                                  [&](const Copy& a, const Copy& b) { return rank(a) < rank(b); });
  place.of = rows;
  place.used = ++asked_;
  return place.memory.Get(stream, rows.rows * rows.cols, type);
}

void RoundedCopies::Written(MatrixView<const float> rows) {
  for (Copy& copy : copies_)
    if (copy.of.data != nullptr && Overlap(copy.of, rows)) copy.of = {};
}

void RoundedCopies::Clear() {
  for (Copy& copy : copies_) copy.of = {};
}

}  // namespace shiftrt
