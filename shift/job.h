// SPDX-License-Identifier: Apache-2.0
// The object that every step of the method takes.
#pragma once

#include "models/model.h"
#include "runtime/context.h"
#include "runtime/progress.h"
#include "text/calibration.h"

namespace shiftrt {

// It holds references; its maker keeps the objects alive.
struct ShiftJob {
  const Context& context;
  const Model& model;
  const CalibrationSet& calibration;
  Progress& progress;

  int64_t layers() const { return model.weights->config.layers; }
  int64_t hidden() const { return model.weights->config.hidden; }
};

}  // namespace shiftrt
