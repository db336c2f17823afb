// SPDX-License-Identifier: Apache-2.0
// The settings of an evaluation as one table. Set(), the keys of journals, the JSON of an evaluation, and the options
// of `eval`, `run --eval` and `sweep --eval` with their help and completion visit it.
#pragma once

#include <span>

#include "include/shiftrt/evaluate.h"
#include "runtime/field_rows.h"

namespace shiftrt {

using SuiteField = OptionRow<SuiteSettings>;
std::span<const SuiteField> SuiteFields();

}  // namespace shiftrt
