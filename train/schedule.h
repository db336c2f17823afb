// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step.
#pragma once

#include <cstdint>

#include "include/shiftrt/training.h"

namespace shiftrt {

// The parts of what is trained that have learning rates of their own: what the method trains, the adapters that
// FinetuneSettings::adapters adds to it, and the head that FinetuneSettings::head adds.
enum class TrainedPart : uint8_t { kMethod, kAdapters, kHead };

// Rises linearly over `warmup` steps to `rate` and falls to zero at the end of `steps`, linearly or along half a
// cosine, as transformers' schedules of these names do (get_linear_schedule_with_warmup).
struct Schedule {
  Decay decay = Decay::kLinear;
  double rate = 3e-5;
  int64_t warmup = 0, steps = 1;
  double adapters = 1, head = 1;  // the rates of these parts, as multiples of `rate`

  // The rate of a part at step 0 .. steps - 1. The first step's rate is not zero, where transformers wastes it: step s
  // has the rate that transformers gives step s + 1 of warm-up.
  double Rate(int64_t step, TrainedPart part = TrainedPart::kMethod) const;
};

// The steps that FinetuneSettings::warmup means, where there are `steps` in all. Throws UsageError for what is neither
// a number of steps nor a share, or for as many steps as `steps` or more.
int64_t WarmupSteps(double warmup, int64_t steps);

}  // namespace shiftrt
