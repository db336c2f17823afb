// SPDX-License-Identifier: Apache-2.0
// Colours of a terminal, for text that people read.
#pragma once

#include <string>
#include <string_view>

namespace shiftrt {

enum class Paint { kBold, kOption, kError };

// True if this file descriptor is a terminal that shows colours, and NO_COLOR (https://no-color.org) is unset or empty.
bool ShowsColors(int descriptor);
// `text` between the codes of the paint.
std::string Painted(std::string_view text, Paint paint);

}  // namespace shiftrt
