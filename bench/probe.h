// SPDX-License-Identifier: Apache-2.0
// The limits of the machine's CPU, from which the floors of the measured times are computed.
#pragma once

#include "runtime/context.h"
#include "runtime/dtype.h"

namespace shiftrt {

// The read bandwidth of all threads together in bytes per second (a sum over a buffer far larger than the caches; the
// best of a few passes), and the float32 FLOP per second of independent multiply-adds in registers.
double MeasureReadBandwidth(const Context& context);
double MeasureFloat32Peak(const Context& context);
// FLOP per second of the CPU's products with such weights in registers: the float32 peak, or with AMX a third
// (bfloat16) or a fifth (float16) of the rate of its tile products, because a product in float32 takes as many
// (kernels/cpu/tile_product.h). Of rounded products (context.products), the rate of the bfloat16 instructions, and of
// quantised weights that of the 16-bit integer instructions where the CPU has them (kernels/cpu/integer_tiles.h).
double MeasureProductPeak(const Context& context, DType weights);

}  // namespace shiftrt
