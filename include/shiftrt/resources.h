// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a computation may use of the machine.
#pragma once

#include <cstdint>
#include <vector>

namespace shiftrt {

/// What a computation may use of the machine. The defaults are all cores that the process may use, and no GPU.
///
/// The results on a CPU depend on the number of threads in their last bits only, and not on what other threads of the
/// program do at the same time.
struct Resources {
  /// Threads of one computation, the calling one included; 0: one per core that the process may use.
  int threads = 0;
  /// Bytes of host memory that the sums over calibration text may take; 0: what is free. Where it is too little, the
  /// calibration makes several passes over the text.
  int64_t calibration_memory = 0;
  /// Indices of the GPUs to use; empty: none. The first one runs the model, the others take a share of calibration
  /// passes. A GPU that does not exist, or a library built without CUDA, is a UsageError of the field "gpus".
  std::vector<int> gpus = {};
};

}  // namespace shiftrt
