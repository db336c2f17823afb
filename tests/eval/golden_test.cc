// SPDX-License-Identifier: Apache-2.0
// Prompts, token ids, log-likelihoods and metrics equal those of lm-evaluation-harness on the same rows and model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "eval/metrics.h"
#include "tests/eval/fixtures.h"

namespace shiftrt {
namespace {

using Json = nlohmann::json;

std::string NameOf(const Json& run) {
  return fmt::format("{}, {} shots, {}", run["task"].get<std::string>(), run["shots"].get<int64_t>(),
                     run["tokenizer"].get<std::string>());
}

TEST(Golden, EveryPromptIsTheReferences) {
  int64_t prompts = 0;
  for (const Json& run : Expected()["runs"]) {
    if (!run["items"][0].contains("contexts")) continue;
    const Dataset dataset = GoldenDataset(run["task"], run["shots"]);
    ASSERT_EQ(dataset.items.size(), run["items"].size()) << NameOf(run);
    for (size_t i = 0; i < dataset.items.size(); ++i) {
      const Json& expected = run["items"][i];
      ASSERT_EQ(dataset.items[i].prompts.size(), expected["contexts"].size()) << NameOf(run);
      for (size_t p = 0; p < dataset.items[i].prompts.size(); ++p, ++prompts) {
        EXPECT_EQ(dataset.items[i].prompts[p].context, expected["contexts"][p]) << NameOf(run) << ", item " << i;
        EXPECT_EQ(dataset.items[i].prompts[p].continuation, expected["continuations"][p]) << NameOf(run);
      }
    }
  }
  EXPECT_GT(prompts, 150);
}

TEST(Golden, EveryTokenIsTheReferences) {
  for (const Json& run : Expected()["runs"]) {
    const auto tokenizer = LoadTokenizer(Goldens() / "tokenizers" / run["tokenizer"].get<std::string>());
    PromptEncoder encoder(*tokenizer, Bos::kAuto, Expected()["config"]["max_position_embeddings"]);
    const Dataset dataset = GoldenDataset(run["task"], run["shots"]);
    for (size_t i = 0; i < dataset.items.size(); ++i) {
      const Json& expected = run["items"][i];
      std::vector<ScoringRequest> requests;
      for (const Prompt& prompt : dataset.items[i].prompts) {
        if (dataset.task->kind == TaskKind::kPages) {
          requests = encoder.EncodeRolling(prompt.continuation);
        } else {
          requests.push_back(encoder.Encode(prompt, dataset.items[i].where));
        }
      }
      ASSERT_EQ(requests.size(), expected["context_tokens"].size()) << NameOf(run);
      for (size_t r = 0; r < requests.size(); ++r) {
        auto tokens = expected["context_tokens"][r].get<std::vector<int32_t>>();
        const auto scored = expected["continuation_tokens"][r].get<std::vector<int32_t>>();
        tokens.insert(tokens.end(), scored.begin(), scored.end());
        EXPECT_EQ(requests[r].tokens, tokens) << NameOf(run) << ", item " << i;
        EXPECT_EQ(requests[r].scored, std::ssize(scored)) << NameOf(run) << ", item " << i;
      }
    }
  }
}

// The reference's metrics of a run: means of items, but for perplexities.
double ReferenceMetric(const Json& run, const std::string& name) {
  double sum = 0, weight = 0;
  for (const Json& item : run["items"]) {
    const Json& value = item["metrics"][name];
    sum += value.is_array() ? value[0].get<double>() : value.get<double>();
    weight += value.is_array() ? value[1].get<double>() : 1;
  }
  if (name == "perplexity" || name.ends_with("_perplexity")) return std::exp(-sum / weight);
  return name == "bits_per_byte" ? -sum / weight / std::log(2.0) : sum / weight;
}

TEST(Golden, EveryScoreAndMetricIsTheReferences) {
  for (const char* tokenizer : {"qwen2", "llama2-json"}) {
    const Model model = GoldenEvalModel(tokenizer);
    for (const Json& run : Expected()["runs"]) {
      if (run["tokenizer"] != tokenizer) continue;
      const Dataset dataset = GoldenDataset(run["task"], run["shots"]);
      Journal journal("");
      NoProgress progress;
      const Context context = Context::Default();
      const std::vector<Variant> variants = {Plain("original", model.plan)};
      const auto scores = Evaluate({context, model, variants, {}, journal, progress}, dataset).scores[0];
      for (size_t i = 0; i < scores.size(); ++i) {
        const Json& expected = run["items"][i];
        for (size_t p = 0; p < scores[i].size(); ++p) {
          EXPECT_NEAR(scores[i][p].log_likelihood, expected["log_likelihoods"][p].get<double>(), 1e-3)
              << NameOf(run) << ", item " << i;
          if (!expected["greedy"].is_null()) {
            EXPECT_EQ(scores[i][p].greedy, expected["greedy"][p].get<bool>()) << NameOf(run) << ", item " << i;
          }
        }
      }
      for (const Metric& metric : Measure(*dataset.task, dataset.items, scores, /*all=*/false)) {
        const auto& names = dataset.task->metrics;  // those of the reference
        if (std::find(names.begin(), names.end(), metric.metric) == names.end()) continue;
        const double value = ReferenceMetric(run, metric.metric);
        EXPECT_NEAR(metric.value, value, 1e-4 * std::abs(value)) << NameOf(run) << ", " << metric.metric;
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
