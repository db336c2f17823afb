// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/lanes512.h"

namespace shiftrt {
extern const SimdBody kAvx512Body = MakeBody<Lanes512>();
}
