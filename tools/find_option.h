// SPDX-License-Identifier: Apache-2.0
// Options by their names. CLI11's own search promises not to throw, but allocates memory: where there is none, it would
// abort the program.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace shiftrt {

// The option of a command (CLI::App, also const) that is called so, with its dashes; null if it has none.
template <typename App>
auto FindOption(App& command, std::string_view flag) {
  const bool is_long = flag.starts_with("--");
  const std::string_view name = flag.substr(std::min<size_t>(is_long ? 2 : 1, flag.size()));
  const auto options = command.get_options();
  const auto found = std::find_if(options.begin(), options.end(), [&](const CLI::Option* option) {
    const std::vector<std::string>& names = is_long ? option->get_lnames() : option->get_snames();
    return std::find(names.begin(), names.end(), name) != names.end();
  });
  return found == options.end() ? nullptr : *found;
}

}  // namespace shiftrt
