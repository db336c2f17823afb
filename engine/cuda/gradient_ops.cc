// SPDX-License-Identifier: Apache-2.0
#include "engine/gradient_ops.h"

#include "runtime/check.h"

namespace shiftrt {

std::unique_ptr<GradientOps> MakeCudaGradientOps(const Context&, std::shared_ptr<const Weights>) {
  FailUsage(Field("device"), "gradients are not computed on a GPU yet: choose cpu");
}

}  // namespace shiftrt
