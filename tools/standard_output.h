// SPDX-License-Identifier: Apache-2.0
// The standard streams of the program, of which every command makes sure at its end that they took what was printed.
#pragma once

#include <string>

namespace shiftrt {

// Occupies the standard streams that the caller has closed, so that no file of the program gets their numbers and
// receives what is printed. Writing to such a stream fails. Call it first.
void OccupyStandardStreams();

// A reader of standard output that closes its pipe (as `head` does) does not end the program: what is printed from then
// on goes nowhere. Without it, a closed pipe ends the program at once. It is for commands whose results go to files.
void GoOnWithoutReader();

// Flushes standard output. Returns `status` if everything that was printed has been written, or if its reader has
// closed a pipe and wants no more (as `head` does). Otherwise says on standard error what was lost, and returns
// `failed`.
int FinishStandardOutput(int status, int failed);

// Throws Error if not everything that was printed so far has been written. A command calls it before it removes what it
// would continue from.
void RequireStandardOutput();

// Says on standard error what a user should know: words that continue "shiftrt: ".
void Tell(const std::string& message);

}  // namespace shiftrt
