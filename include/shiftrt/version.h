// SPDX-License-Identifier: Apache-2.0
/// \file
/// The version of the library.
#pragma once

/// Major part of the version of these headers. It changes with every incompatible change once it is at least 1.
#define SHIFTRT_VERSION_MAJOR 0
/// Minor part of the version of these headers. While the major part is 0, it changes with every incompatible change.
#define SHIFTRT_VERSION_MINOR 2
/// Patch part of the version of these headers.
#define SHIFTRT_VERSION_PATCH 0

namespace shiftrt {

/// The version of the library that the program is linked with, "MAJOR.MINOR.PATCH".
/// \return a string that lives as long as the process
const char* Version() noexcept;

}  // namespace shiftrt
