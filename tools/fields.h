// What the command line calls the fields of the library, for its errors.
#pragma once

#include <string>

namespace shiftrt {

// "--lra" for "rank"; the field itself where no option stands for it.
std::string OptionOf(const std::string& field);

}  // namespace shiftrt
