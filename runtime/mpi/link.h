// SPDX-License-Identifier: Apache-2.0
// Messages through MPI. A separate thread makes all calls of MPI, so that messages travel during computations, and so
// that a process which dies or hangs is noticed. Waiting threads sleep; MPI's own waits would keep a core busy each.
#pragma once

#include <chrono>
#include <memory>

#include "runtime/launcher.h"

namespace shiftrt {

// Starts MPI. Every process sends a sign of life each second. A process from which nothing has arrived for `silence`
// counts as failed. If not all processes start, or end, within five times that, this process ends with a message and
// status 1, because MPI waits for them without a limit.
std::unique_ptr<Link> MakeMpiLink(MpiKind kind, std::chrono::seconds silence);

}  // namespace shiftrt
