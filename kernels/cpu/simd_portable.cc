// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd_vector.h"

namespace shiftrt {
extern const SimdBody kPortableBody = MakeBody<VectorLanes<FourFloats, FourInts, 4, 256>>();
}
