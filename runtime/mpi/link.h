// SPDX-License-Identifier: Apache-2.0
// Messages through MPI. A separate thread makes all calls of MPI, so that messages travel during computations, and so
// that a process which dies or hangs is noticed. Waiting threads sleep; MPI's own waits would keep a core busy each.
#pragma once

#include <chrono>
#include <memory>

#include "runtime/launcher.h"

namespace shiftrt {

// Starts MPI. Every process sends a sign of life each second. A process from which nothing has arrived for `silence`
// counts as failed.
std::unique_ptr<Link> MakeMpiLink(MpiKind kind, std::chrono::seconds silence);

}  // namespace shiftrt
