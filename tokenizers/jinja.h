// SPDX-License-Identifier: Apache-2.0
// Renders the subset of Jinja in which chat templates are written, as transformers renders it: Jinja 3.1's immutable
// sandbox with trim_blocks, lstrip_blocks, the tags break, continue and generation, and the functions raise_exception
// and strftime_now. docs/chat.md lists the subset. Everything else is refused by name, never guessed.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace shiftrt {

class JinjaTemplate {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // Errors name the template `name`. Throws Error "name:line:column: ..." for what is malformed or not supported.
  JinjaTemplate(std::string_view text, const std::string& name);
  ~JinjaTemplate();

  // The text with these variables, a JSON object; `now` is in seconds since 1970. Throws Error with the place for
  // operations that Jinja refuses or that this subset lacks, for what the template itself refuses (raise_exception),
  // and for one that takes more work or memory than any real template.
  std::string Render(const nlohmann::ordered_json& variables, int64_t now) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt
