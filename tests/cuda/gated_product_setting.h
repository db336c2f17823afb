// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace shiftrt::gpu {

// Sets the environment variable SHIFTRT_CUDA_GATED_PRODUCT, or removes it (null). The destructor restores it.
class GatedProductSetting {
 public:
  explicit GatedProductSetting(const char* value) {
    if (const char* const before = std::getenv(kName); before != nullptr) before_ = before;
    Set(value);
  }
  ~GatedProductSetting() { Set(before_ ? before_->c_str() : nullptr); }
  GatedProductSetting(const GatedProductSetting&) = delete;
  GatedProductSetting& operator=(const GatedProductSetting&) = delete;

 private:
  static constexpr const char* kName = "SHIFTRT_CUDA_GATED_PRODUCT";
  static void Set(const char* value) {
    if (value != nullptr) {
      ::setenv(kName, value, 1);
    } else {
      ::unsetenv(kName);
    }
  }

  std::optional<std::string> before_;
};

}  // namespace shiftrt::gpu
