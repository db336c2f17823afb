// SPDX-License-Identifier: Apache-2.0
// Messages over MPI. A thread of its own makes all calls of MPI, so that messages travel while the others compute, and
// that a process which dies or hangs is noticed. Waiting threads sleep; MPI's own waits would each keep a core busy.
#pragma once

#include <chrono>
#include <memory>

#include "runtime/launcher.h"

namespace shiftrt {

// Starts MPI. A process that has sent nothing for `silence`, though each says every second that it lives, has failed.
std::unique_ptr<Link> MakeMpiLink(MpiKind kind, std::chrono::seconds silence);

}  // namespace shiftrt
