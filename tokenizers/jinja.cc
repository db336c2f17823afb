// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/jinja.h"

#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "tokenizers/jinja/evaluator.h"
#include "tokenizers/jinja/lexer.h"
#include "tokenizers/jinja/parser.h"

namespace shiftrt {

struct JinjaTemplate::Impl {
  jinja::Source source;
  jinja::Body body;
};

JinjaTemplate::JinjaTemplate(std::string_view text, const std::string& name) : impl_(std::make_unique<Impl>()) {
  Check(text.size() <= kMaxBytes, "{}: a template of {} bytes is larger than {}", name, text.size(), kMaxBytes);
  impl_->source = {name, jinja::NormalizeSource(text)};
  impl_->body = jinja::Parse(impl_->source);
}

JinjaTemplate::~JinjaTemplate() = default;

std::string JinjaTemplate::Render(const nlohmann::ordered_json& variables, int64_t now) const {
  jinja::Run run{impl_->source, now};
  std::vector<std::pair<std::string, jinja::Value>> values;
  for (const auto& [name, value] : variables.items()) values.emplace_back(name, run.FromJson(value));
  run.work = 0;  // the limit is on what the template does
  return jinja::Render(impl_->body, std::move(values), run);
}

}  // namespace shiftrt
