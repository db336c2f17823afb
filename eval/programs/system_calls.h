// SPDX-License-Identifier: Apache-2.0
// The filter of system calls (seccomp) of a process that runs a program of a model.
#pragma once

#include <linux/filter.h>

#include <vector>

namespace shiftrt {

// The filter refuses to start a process (threads may be started), to open a socket, to send a signal, to look into
// another process or change its limits, and to change namespaces or mounts. With `files_are_shared`, where nothing but
// Landlock separates the process from the files of the user, it also refuses to change the mode, the owner, the times,
// the attributes and the length of a file by its name, which Landlock does not see. Empty for a processor that is not
// supported.
std::vector<sock_filter> SystemCallFilter(bool files_are_shared);

}  // namespace shiftrt
