// The middle of several values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shiftrt {

// Of at least one value; the upper one of two in the middle.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace shiftrt
