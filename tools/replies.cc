// SPDX-License-Identifier: Apache-2.0
#include "tools/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/median.h"
#include "shiftrt/runner.h"
#include "tools/table.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

std::vector<ComparedReply> RepliesOf(const ModelVariant& variant, const std::vector<std::vector<int32_t>>& ids,
                                     const ReplySettings& settings, const Resources& resources, Progress& progress) {
  ModelRunner runner(variant.model, resources);
  std::vector<ComparedReply> replies(ids.size());
  progress.Begin("replies", std::ssize(ids));
  runner.GenerateMany(ids, {.max_tokens = settings.max_tokens}, settings.batch, [&](size_t i, const Generation& reply) {
    replies[i].text = reply.text;
    replies[i].tokens = reply.tokens;
    if (reply.end >= 0) replies[i].tokens.push_back(reply.end);
    progress.Advance(1);
  });
  progress.End();
  return replies;
}

std::optional<int64_t> FirstDifference(const std::vector<int32_t>& one, const std::vector<int32_t>& other) {
  const auto [at, other_at] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (at == one.end() && other_at == other.end()) return std::nullopt;
  return at - one.begin();
}

// The predictions that each variant makes of the original's replies go into the replies and into the table.
void AddFidelity(std::span<const ModelVariant> models, const std::vector<std::vector<int32_t>>& ids,
                 const Resources& resources, Progress& progress, ReplyComparison& comparison) {
  std::vector<FidelitySequence> sequences;
  for (size_t p = 0; p < ids.size(); ++p) {
    FidelitySequence& sequence = sequences.emplace_back(FidelitySequence{ids[p], std::ssize(ids[p])});
    const std::vector<int32_t>& reply = comparison.prompts[p].replies.front().tokens;
    sequence.tokens.insert(sequence.tokens.end(), reply.begin(), reply.end());
  }
  const std::vector<SequenceFidelities> found = MeasureTokenFidelity(models, sequences, resources, &progress);
  comparison.fidelity.text = "the original's replies";
  for (size_t v = 0; v < found.size(); ++v) {
    std::vector<TokenFidelity> all;
    for (size_t p = 0; p < ids.size(); ++p) {
      comparison.prompts[p].replies[v + 1].fidelity = SummarizeFidelity(found[v][p]);
      all.insert(all.end(), found[v][p].begin(), found[v][p].end());
    }
    comparison.fidelity.names.push_back(models[v + 1].name);
    comparison.fidelity.labels.push_back(models[v + 1].label);
    comparison.fidelity.rows.push_back(SummarizeFidelity(all));
  }
}

std::string PartsAt(const ComparedReply& reply) {
  return reply.parts_at ? fmt::format("first differs at token {}", *reply.parts_at) : "is the same";
}

}  // namespace

int64_t ReplyComparison::Equal(size_t model) const {
  return std::count_if(prompts.begin(), prompts.end(),
                       [&](const ComparedReplies& one) { return !one.replies[model].parts_at; });
}

PageTable ReplyComparison::Summary() const {
  PageTable table{{"model", "same replies", "first different token, median"}, {}};
  for (size_t m = 1; m < labels.size(); ++m) {
    std::vector<double> parts;
    for (const ComparedReplies& one : prompts)
      if (one.replies[m].parts_at) parts.push_back(static_cast<double>(*one.replies[m].parts_at));
    table.rows.push_back({labels[m], fmt::format("{} of {}", Equal(m), prompts.size()),
                          parts.empty() ? "" : fmt::format("{:.0f}", Median(parts))});
  }
  return table;
}

std::string ReplyComparison::Text() const {
  std::string text;
  for (const ComparedReplies& one : prompts) {
    text += fmt::format("\"{}\"\n", ForTerminal(one.prompt));
    for (size_t m = 0; m < labels.size(); ++m) {
      const ComparedReply& reply = one.replies[m];
      const std::string how = reply.fidelity ? fmt::format(" ({}; same top p {:.1f}%, mean KLD {:.4f})", PartsAt(reply),
                                                           100 * reply.fidelity->same_top, reply.fidelity->mean_kld)
                                             : "";
      text += fmt::format("  {}{}:{}\n", labels[m], how, Indented(reply.text));
    }
    text += "\n";
  }
  return text + Table(Summary()).Text() + fidelity.Text();
}

std::vector<Section> ReplyComparison::Sections() const {
  Section overview = fidelity.ToSection();
  overview.parts.insert(overview.parts.begin(), Summary());
  std::vector<Section> sections = {std::move(overview)};
  for (const ComparedReplies& one : prompts) {
    PageTable table{{"model", "first different token", "same top p, %", "mean KLD", "reply"}, {}};
    for (size_t m = 0; m < labels.size(); ++m) {
      const ComparedReply& reply = one.replies[m];
      table.rows.push_back({labels[m], reply.parts_at ? std::to_string(*reply.parts_at) : "",
                            reply.fidelity ? fmt::format("{:.1f}", 100 * reply.fidelity->same_top) : "",
                            reply.fidelity ? fmt::format("{:.4f}", reply.fidelity->mean_kld) : "", reply.text});
    }
    sections.push_back({fmt::format("Prompt {}", sections.size()), one.prompt, {std::move(table)}});
  }
  return sections;
}

Json ReplyComparison::ToJson() const {
  Json all = Json::array();
  for (const ComparedReplies& one : prompts) {
    Json replies = Json::array();
    for (size_t m = 0; m < names.size(); ++m) {
      const ComparedReply& reply = one.replies[m];
      Json row = {{"name", names[m]}, {"text", reply.text}, {"tokens", reply.tokens}};
      if (reply.fidelity) {
        row["parts_at"] = reply.parts_at ? Json(*reply.parts_at) : Json();
        row["fidelity"] = FidelityJson(*reply.fidelity);
      }
      replies.push_back(std::move(row));
    }
    all.push_back({{"prompt", one.prompt}, {"replies", std::move(replies)}});
  }
  Json json = {{"prompts", std::move(all)}};
  if (fidelity.empty()) return json;
  json["fidelity"] = fidelity.ToJson();
  for (size_t m = 1; m < names.size(); ++m) json["fidelity"]["variants"][m - 1]["same_replies"] = Equal(m);
  return json;
}

ReplyComparison CompareReplies(std::span<const ModelVariant> models, std::span<const std::string> prompts,
                               const std::vector<std::vector<int32_t>>& ids, const ReplySettings& settings,
                               const Resources& resources, Progress& progress) {
  ReplyComparison comparison;
  comparison.prompts.reserve(prompts.size());
  for (const std::string& prompt : prompts) comparison.prompts.push_back({.prompt = prompt});
  for (const ModelVariant& model : models) {
    comparison.names.push_back(model.name);
    comparison.labels.push_back(model.label);
    std::vector<ComparedReply> replies = RepliesOf(model, ids, settings, resources, progress);
    for (size_t p = 0; p < ids.size(); ++p) {
      std::vector<ComparedReply>& all = comparison.prompts[p].replies;
      all.push_back(std::move(replies[p]));
      if (all.size() > 1) all.back().parts_at = FirstDifference(all.front().tokens, all.back().tokens);
    }
  }
  if (models.size() > 1) AddFidelity(models, ids, resources, progress, comparison);
  return comparison;
}

}  // namespace shiftrt
