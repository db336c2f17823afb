// JSON from files nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shiftrt {

// Parses `text`; `name` stands for the file in errors. Throws Error for invalid JSON or UTF-8, for a key that stands
// twice in one object (the parser would let the last one win), and for nesting beyond 16 levels (walking the value
// takes one stack frame a level).
nlohmann::json ParseJson(std::string_view text, const std::string& name);

}  // namespace shiftrt
