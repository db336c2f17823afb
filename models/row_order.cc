// SPDX-License-Identifier: Apache-2.0
#include "models/row_order.h"

#include <numeric>

namespace shiftrt {

namespace {

RowOrder Share(std::vector<int64_t> order) { return std::make_shared<const std::vector<int64_t>>(std::move(order)); }

}  // namespace

RowOrder InterleavedHalves(int64_t rows, int64_t parts) {
  const int64_t half = rows / parts / 2;
  std::vector<int64_t> order;
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t second = 0; second < 2; ++second)
      for (int64_t i = 0; i < half; ++i) order.push_back((part * half + i) * 2 + second);
  return Share(std::move(order));
}

RowOrder GroupedParts(int64_t groups, const std::vector<int64_t>& parts) {
  const int64_t of_group = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  std::vector<int64_t> order;
  int64_t before = 0;
  for (const int64_t part : parts) {
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t i = 0; i < part; ++i) order.push_back(group * of_group + before + i);
    before += part;
  }
  return Share(std::move(order));
}

RowOrder TiledHeads(int64_t before, int64_t groups, int64_t heads_of_group, int64_t rows) {
  if (groups == 1 || heads_of_group == 1) return nullptr;
  std::vector<int64_t> order(before);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t head = 0; head < heads_of_group; ++head)
      for (int64_t i = 0; i < rows; ++i) order.push_back(before + (head * groups + group) * rows + i);
  return Share(std::move(order));
}

RowOrder Inverse(const RowOrder& order) {
  if (order == nullptr) return nullptr;
  std::vector<int64_t> inverse(order->size());
  for (size_t i = 0; i < order->size(); ++i) inverse[(*order)[i]] = static_cast<int64_t>(i);
  return Share(std::move(inverse));
}

}  // namespace shiftrt
