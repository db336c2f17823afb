// What the machine can do at best: the floors that every measured time is printed against.
#pragma once

#include "runtime/context.h"

namespace shiftrt {

// Bytes a second all threads together read from memory (a sum over a buffer far larger than the caches; best of a few
// passes), and float32 FLOP a second of independent multiply-adds in registers.
double MeasureReadBandwidth(const Context& context);
double MeasureFloat32Peak(const Context& context);

}  // namespace shiftrt
