// SPDX-License-Identifier: Apache-2.0
// Fits as messages between processes that have dealt them out.
#pragma once

#include <memory>

#include "runtime/processes.h"
#include "shift/fit/fit.h"

namespace shiftrt {

void Put(Packer& out, const RidgeSolution& solution);
void Put(Packer& out, const Lra& lra);
void Put(Packer& out, const SiteReport& report);  // but for its site
// Into an object of no content, but for the site of a report. Throw Error where the message ends too early.
void Get(Unpacker& in, RidgeSolution& solution);
void Get(Unpacker& in, std::shared_ptr<const Lra>& lra);
void Get(Unpacker& in, SiteReport& report);

}  // namespace shiftrt
