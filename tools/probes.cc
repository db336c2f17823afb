// SPDX-License-Identifier: Apache-2.0
#include "tools/probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shiftrt/runner.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

constexpr int64_t kTokensAfterAnswer = 3;  // the end of the line, which may be tokens of its own

// The right answers of a model to the items of a probe.
int64_t RightAnswers(ModelRunner& runner, const LanguageModel& model, const ProbeItems& probe, int64_t batch,
                     Progress& progress) {
  std::vector<std::vector<int32_t>> prompts;
  int64_t longest = 0;  // the tokens of an answer
  for (const ProbeItem& item : probe.items) {
    prompts.push_back(model.Encode(item.prompt));
    longest = std::max(longest, std::ssize(model.Encode(" " + item.answer)));
  }
  for (const std::vector<int32_t>& prompt : prompts)
    longest = std::min(longest, model.Shape().max_positions - std::ssize(prompt) - kTokensAfterAnswer);
  int64_t right = 0;
  runner.GenerateMany(prompts, {.max_tokens = longest + kTokensAfterAnswer}, batch,
                      [&](size_t i, const Generation& reply) {
                        right += AnswersProbe(probe.probe, reply.text, probe.items[i].answer) ? 1 : 0;
                        progress.Advance(1);
                      });
  return right;
}

}  // namespace

PageTable ProbeResults::Table() const {
  PageTable table{{"probe", "length", "items"}, {}};
  table.header.insert(table.header.end(), labels.begin(), labels.end());
  for (const Row& row : rows) {
    table.rows.push_back({row.probe, std::to_string(row.length), std::to_string(row.items)});
    for (const int64_t right : row.right)
      table.rows.back().push_back(
          fmt::format("{:.0f}%", 100 * static_cast<double>(right) / static_cast<double>(row.items)));
  }
  return table;
}

Json ProbeResults::ToJson() const {
  Json json = Json::array();
  for (const Row& row : rows) {
    Json right = Json::object();
    for (size_t m = 0; m < names.size(); ++m) right[names[m]] = row.right[m];
    json.push_back({{"probe", row.probe}, {"length", row.length}, {"items", row.items}, {"right", std::move(right)}});
  }
  return json;
}

ProbeResults RunProbes(std::span<const ModelVariant> models, std::span<const ProbeItems> probes, int64_t batch,
                       const Resources& resources, Progress& progress) {
  ProbeResults results;
  int64_t items = 0;
  for (const ProbeItems& probe : probes) {
    results.rows.push_back({probe.probe, probe.length, std::ssize(probe.items), {}});
    items += std::ssize(probe.items);
  }
  for (const ModelVariant& variant : models) {
    results.names.push_back(variant.name);
    results.labels.push_back(variant.label);
    ModelRunner runner(variant.model, resources);
    progress.Begin("probes", items);
    for (size_t p = 0; p < probes.size(); ++p)
      results.rows[p].right.push_back(RightAnswers(runner, variant.model, probes[p], batch, progress));
    progress.End();
  }
  return results;
}

}  // namespace shiftrt
