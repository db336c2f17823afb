// SPDX-License-Identifier: Apache-2.0
// The median of several values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shiftrt {

// The median of `values`, which must not be empty. For an even number of values, the larger of the two middle ones.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shiftrt
