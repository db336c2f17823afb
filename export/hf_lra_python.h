// SPDX-License-Identifier: Apache-2.0
// The Python files of the format hf-lra, which the build puts into the program: export/hf_lra/*.py.
#pragma once

namespace shiftrt {

extern const char* const kConfigurationShiftrtPy;
extern const char* const kModelingShiftrtPy;

}  // namespace shiftrt
