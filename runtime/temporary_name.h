// SPDX-License-Identifier: Apache-2.0
// The temporary names under which outputs are written: OUTPUT.tmp-shiftrt-PID-RANDOM, next to the output. Two programs
// may have the same number where each has a container of its own, so that the number alone would not tell them apart.
#pragma once

#include <filesystem>

namespace shiftrt {

// A name under which this process may write `output` until it is complete; another one at each call.
std::filesystem::path TemporaryName(const std::filesystem::path& output);

// True for a name that TemporaryName() has returned in this process.
bool IsOwnTemporary(const std::filesystem::path& path);

// Remembers a temporary file or directory of this process until it is released: by its address, without taking memory,
// and so many of them as a large model has files. RemoveHeldTemporaries() removes all that are held, for a program that
// ends without its destructors.
void HoldTemporary(const std::filesystem::path& path);
void ReleaseTemporary(const std::filesystem::path& path);
void RemoveHeldTemporaries() noexcept;

// Takes the lock of an open temporary file or directory, which its process holds until the descriptor is closed. False
// if another process has removed the file meanwhile, so that it has to be created again. A file system without locks
// counts as locked.
bool LockTemporary(int fd);

// Removes the temporary files and directories of `output` that nobody has locked: the processes that wrote them were
// killed. Those of processes that still write stay. Links with such names are removed, too: to follow one would
// overwrite the file that it names.
void RemoveAbandoned(const std::filesystem::path& output);

}  // namespace shiftrt
