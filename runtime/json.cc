// SPDX-License-Identifier: Apache-2.0
#include "runtime/json.h"

#include <set>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

nlohmann::json ParseJson(std::string_view text, const std::string& name) {
  using Event = nlohmann::json::parse_event_t;
  // The parser treats a zero byte as the end of the text and would ignore what follows.
  Check(text.find('\0') == text.npos, "{}: not valid JSON: a zero byte at {}", name, text.find('\0'));
  std::vector<std::set<std::string>> open;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    Check(depth < 16, "{}: JSON is nested more than 16 levels deep", name);
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      Check(open.back().insert(key).second, "{}: duplicate key {}", name, key);
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& e) {
    Fail("{}: not valid JSON: {}", name, e.what());
  }
}

}  // namespace shiftrt
