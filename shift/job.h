// SPDX-License-Identifier: Apache-2.0
// What every step of the method works with.
#pragma once

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"
#include "shift/text/calibration.h"

namespace shiftrt {

// References: whoever makes one keeps what it refers to alive.
struct ShiftJob {
  const Context& context;
  const Model& model;
  const CalibrationSet& calibration;
  Progress& progress;

  int64_t layers() const { return model.weights->config.layers; }
  int64_t hidden() const { return model.weights->config.hidden; }
};

}  // namespace shiftrt
