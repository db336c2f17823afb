// SPDX-License-Identifier: Apache-2.0
// What the handle of suites refers to.
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
