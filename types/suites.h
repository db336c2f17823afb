// SPDX-License-Identifier: Apache-2.0
// The settings of an evaluation as one table. Set(), the keys of journals, the JSON of an evaluation, and the options
// of `eval`, `run --eval` and `sweep --eval` with their help and completion visit it.
#pragma once

#include <span>
#include <string_view>

#include "include/shiftrt/measurements.h"
#include "runtime/field_rows.h"

namespace shiftrt {

using SuiteField = OptionRow<SuiteSettings>;
std::span<const SuiteField> SuiteFields();

// The rule for a BOS token before a text: as the tokenizer's own configuration says (the reference since 0.4.9.2),
// always, or never (the reference before). A text that spells the token out gets no second one.
enum class Bos { kAuto, kAlways, kNever };
Bos ParseBos(std::string_view name);

}  // namespace shiftrt
