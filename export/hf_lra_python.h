// SPDX-License-Identifier: Apache-2.0
// The Python files of the format hf-lra (export/hf_lra/*.py), which the build embeds in the program.
#pragma once

namespace shiftrt {

extern const char* const kConfigurationShiftrtPy;
extern const char* const kModelingShiftrtPy;

}  // namespace shiftrt
