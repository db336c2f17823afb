// SPDX-License-Identifier: Apache-2.0
// Compares a saved model with what it was made from: perplexity on a text, and the documents of that text scored by
// both models at once: evaluate DIRECTORY TEXT
#include <shiftrt/shiftrt.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const shiftrt::LanguageModel repaired = shiftrt::LanguageModel::Open(argv[1]);
    const std::vector<int64_t> removed = repaired.RemovedLayers();
    const shiftrt::LanguageModel pruned = repaired.Without(removed);  // shares the weights
    if (const shiftrt::Provenance* made = repaired.MadeBy())
      std::printf("%s: %zu layers removed (criterion: %s)\n", made->model.c_str(), removed.size(),
                  made->criterion.c_str());

    for (const shiftrt::LanguageModel& model : {pruned, repaired}) {
      const shiftrt::TextPerplexity text = shiftrt::MeasurePerplexity(model, argv[2], {.protocol = "seq128"});
      std::printf("perplexity %.2f, %.1f M parameters\n", text.perplexity,
                  static_cast<double>(model.Parameters()) / 1e6);
    }
    const std::vector<shiftrt::LanguageModel> both = {pruned, repaired};
    // With data sets at hand: {.tasks = "paper7", .data = {"DIRECTORY"}}.
    for (const shiftrt::SuiteResult& result :
         shiftrt::Evaluate(both, {.tasks = "wikitext", .data = {"wikitext=" + std::string(argv[2])}}))
      for (size_t metric = 0; metric < result.scores[0].size(); ++metric)
        std::printf("%s, %s: pruned %.3f, repaired %.3f\n", result.task.c_str(),
                    result.scores[0][metric].metric.c_str(), result.scores[0][metric].value,
                    result.scores[1][metric].value);
    return 0;
  } catch (const shiftrt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
