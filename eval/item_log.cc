// SPDX-License-Identifier: Apache-2.0
#include "eval/item_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/metrics.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// One value if all choices have the same, else one per choice.
template <typename T>
Json OnceIfShared(const std::vector<T>& values) {
  const bool shared = std::all_of(values.begin(), values.end(), [&](const T& value) { return value == values[0]; });
  return shared ? Json{values[0]} : Json(values);
}

// Texts and token ids of every prompt, cut to the model's context (of a document, its windows).
Json PromptsJson(const Dataset& dataset, const Item& item, PromptEncoder& encoder) {
  std::vector<std::string> contexts, continuations;
  std::vector<std::vector<int32_t>> context_tokens, continuation_tokens;
  for (const Prompt& prompt : item.prompts) {
    contexts.push_back(prompt.context);
    continuations.push_back(prompt.continuation);
    const bool rolling = dataset.task->kind == TaskKind::kPages;
    for (const ScoringRequest& request :
         rolling ? encoder.EncodeRolling(prompt.continuation) : std::vector{encoder.Encode(prompt, item.where)}) {
      const auto cut = request.tokens.end() - request.scored;
      context_tokens.emplace_back(request.tokens.begin(), cut);
      continuation_tokens.emplace_back(cut, request.tokens.end());
    }
  }
  return {{"contexts", OnceIfShared(contexts)},
          {"continuations", OnceIfShared(continuations)},
          {"context_tokens", OnceIfShared(context_tokens)},
          {"continuation_tokens", continuation_tokens}};
}

// The text and the token ids of the prompt of a reply, cut to the model's context, and the right answer.
Json PromptJson(const Dataset& dataset, const Item& item, const PromptEncoder& encoder) {
  const std::string& context = item.prompts[0].context;
  return {{"contexts", context},
          {"context_tokens", encoder.EncodePrompt(context, dataset.task->max_tokens, item.where)},
          {"answer", item.answer}};
}

Json ReplyJson(const Task& task, const Reply& reply) {
  Json json = {
      {"reply", reply.text}, {"tokens", std::ssize(reply.tokens)}, {kRepeated, RepeatedFourGrams(reply.tokens)}};
  for (size_t m = 0; m < task.metrics.size(); ++m) json["right"][task.metrics[m]] = static_cast<bool>(reply.right[m]);
  if (!reply.outcome.empty()) json["outcome"] = reply.outcome;
  return json;
}

}  // namespace

void ItemLog::Add(const Dataset& dataset, const std::vector<Variant>& variants, const EvalScores& scores) {
  for (size_t i = 0; i < dataset.items.size(); ++i) {
    const Item& item = dataset.items[i];
    const bool replies = dataset.task->kind == TaskKind::kReply;
    Json line = replies ? PromptJson(dataset, item, encoder_) : PromptsJson(dataset, item, encoder_);
    line["task"] = dataset.task->name;
    line["row"] = item.where;
    for (size_t v = 0; replies && v < variants.size(); ++v)
      line["variants"][variants[v].name] = ReplyJson(*dataset.task, scores.replies[v][i]);
    if (replies) {
      file_.Write(line.dump() + "\n");
      continue;
    }
    line["gold"] = item.gold;
    for (size_t v = 0; v < variants.size(); ++v) {
      Json& entry = line["variants"][variants[v].name];
      for (const Score& score : scores.scores[v][i]) {
        entry["log_likelihoods"].push_back(score.log_likelihood);
        entry["greedy"].push_back(score.greedy);
      }
    }
    file_.Write(line.dump() + "\n");
  }
}

}  // namespace shiftrt
