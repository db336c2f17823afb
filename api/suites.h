// SPDX-License-Identifier: Apache-2.0
// The data and the settings behind a handle of suites.
#pragma once

#include <vector>

#include "eval/dataset.h"
#include "eval/requests.h"
#include "include/shiftrt/evaluate.h"

namespace shiftrt {

struct Suites::Impl {
  SuiteSettings settings = {};
  Bos bos = Bos::kAuto;
  std::vector<Dataset> datasets = {};
};

}  // namespace shiftrt
