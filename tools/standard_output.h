// SPDX-License-Identifier: Apache-2.0
// The standard streams of the program, of which every command makes sure at its end that they took what was printed.
#pragma once

#include <string>

namespace shiftrt {

// Occupies the standard streams that the caller has closed, so that no file of the program gets their numbers and
// receives what is printed. Writing to such a stream fails. Call it first.
void OccupyStandardStreams();

// Flushes standard output. Returns `status` if everything that was printed has been written, or if its reader has
// closed a pipe and wants no more (as `head` does). Otherwise says on standard error what was lost, and returns
// `failed`.
int FinishStandardOutput(int status, int failed);

// Says on standard error what a user should know: words that continue "shiftrt: ".
void Tell(const std::string& message);

}  // namespace shiftrt
