// SPDX-License-Identifier: Apache-2.0
// The error of a computation that meets an infinity or a NaN. A weight or an adapter may hold it already; reading them
// all with check_finite (include/shiftrt/model.h) names it.
#pragma once

#include <cmath>
#include <utility>

#include "runtime/check.h"

namespace shiftrt {

class NotFinite : public Error {
 public:
  using Error::Error;
};

// Throws NotFinite with the formatted message unless `value` is finite.
template <typename... Args>
void CheckIsFinite(double value, fmt::format_string<Args...> format, Args&&... args) {
  if (!std::isfinite(value)) [[unlikely]]
    throw NotFinite(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shiftrt
