// SPDX-License-Identifier: Apache-2.0
/// \file
/// The settings of an export.
#pragma once

#include <cstdint>
#include <string>

namespace shiftrt {

/// Says how Export() writes a model.
struct ExportSettings {
  std::string format = "hf";            ///< a name that ExportFormatNames() lists
  int64_t shard_bytes = 5'000'000'000;  ///< bytes of tensors per file of weights, where the format has several
  bool q8_0 = false;                    ///< matrices in GGUF's Q8_0; of "gguf" only
  std::string base_name = {};           ///< name of the original model for others, "org/name"; empty: as its files say
};

}  // namespace shiftrt
