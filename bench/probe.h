// SPDX-License-Identifier: Apache-2.0
// The limits of the machine, from which the floors of the measured times are computed.
#pragma once

#include "runtime/context.h"

namespace shiftrt {

// The read bandwidth of all threads together in bytes per second (a sum over a buffer far larger than the caches; the
// best of a few passes), and the float32 FLOP per second of independent multiply-adds in registers.
double MeasureReadBandwidth(const Context& context);
double MeasureFloat32Peak(const Context& context);

}  // namespace shiftrt
