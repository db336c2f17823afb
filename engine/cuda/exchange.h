// SPDX-License-Identifier: Apache-2.0
// Rows between the GPUs of several processes (engine/exchanged_collector.h).
#pragma once

#include <memory>

#include "engine/cuda/rows.h"
#include "engine/exchanged_collector.h"
#include "runtime/context.h"

namespace shiftrt {

// Makes the exchange of the rows of this stream, which belongs to the context's GPU. They travel by NCCL if all
// processes have it and each has a GPU of its own, and through the host otherwise: the same rows either way. All
// processes call it.
std::unique_ptr<RowExchange> MakeRowExchange(const Context& context, std::shared_ptr<const StreamRows> rows);

}  // namespace shiftrt
