// SPDX-License-Identifier: Apache-2.0
// The public face as an embedding program uses it, on the demo model: face MODEL DIRECTORY. Prints what failed.
#include <shiftrt/shiftrt.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

int failures = 0;

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}
#define EXPECT(condition) Expect(condition, #condition)

template <typename Error, typename Call>
std::string Refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const char* const kPrompt = "It is a truth universally acknowledged, that";

shiftrt::RepairSettings Settings(const shiftrt::LanguageModel& model) {
  shiftrt::RepairSettings settings;
  settings.prune = "bi:4";
  settings.rank = "16";
  settings.text = (model.Directory() / "calibration.txt").string() + ":16x64";
  return settings;
}

std::string Speak(const shiftrt::LanguageModel& model, int threads) {
  shiftrt::ModelRunner runner(model, {.threads = threads});
  return runner.Generate(kPrompt, {.max_tokens = 16}).text;
}

void Errors(const shiftrt::LanguageModel& model) {
  EXPECT(Refusal<shiftrt::Error>([] { shiftrt::LanguageModel::Open("/nowhere"); }).find("/nowhere") !=
         std::string::npos);
  shiftrt::RepairSettings settings = Settings(model);
  settings.text = "";
  settings.rank = "nonsense";
  EXPECT(Refusal<shiftrt::UsageError>([&] { shiftrt::PruneAndRepair(model, settings); }).find("nonsense") !=
         std::string::npos);
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::ModelRunner(model, {.threads = -1}); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::ModelRunner(model, {.gpus = {12345}}); }).empty());
  shiftrt::ModelRunner runner(model);
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.NewSequence(model.Shape().max_positions + 1); }).empty());
  const std::vector<std::vector<int32_t>> short_one = {{1}};
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.LogProbabilities(short_one); }).empty());
  const std::vector<std::vector<int32_t>> unknown = {{1, static_cast<int32_t>(model.Shape().vocabulary)}};
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.LogProbabilities(unknown); }).empty());
}

// A sequence continued token by token has the probabilities that the whole one has.
void LogitsAndLogProbabilities(const shiftrt::LanguageModel& model) {
  shiftrt::ModelRunner runner(model);
  const std::vector<std::vector<int32_t>> sequences = {model.Encode(kPrompt), model.Encode("the sea and the land")};
  const std::vector<std::vector<float>> expected = runner.LogProbabilities(sequences);
  EXPECT(expected.size() == 2);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<int32_t>& tokens = sequences[s];
    EXPECT(expected[s].size() == tokens.size() - 1);
    shiftrt::SequenceCache sequence = runner.NewSequence(static_cast<int64_t>(tokens.size()));
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::vector<float> logits = runner.NextLogits({&tokens[i], 1}, sequence);
      EXPECT(static_cast<int64_t>(logits.size()) == model.Shape().vocabulary);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      EXPECT(std::abs(logits[tokens[i + 1]] - std::log(sum) - expected[s][i]) < 1e-3);
    }
    EXPECT(sequence.Size() == static_cast<int64_t>(tokens.size()) - 1);
  }
}

struct CountedProgress : shiftrt::Progress {
  void Begin(std::string_view, int64_t) override { ++begun; }
  void Advance(int64_t count) override { done += count; }
  void End() override {}
  int begun = 0;
  int64_t done = 0;
};

// Two threads: one prunes and repairs, the other generates. Each has the result that it has alone.
void TwoThreads(const shiftrt::LanguageModel& model, const shiftrt::RepairResult& alone, const std::string& spoken) {
  std::vector<double> scores;
  std::string repaired, original;
  std::thread repairing([&] {
    const shiftrt::RepairResult again = shiftrt::PruneAndRepair(model, Settings(model));
    scores = again.scores;
    repaired = Speak(again.corrected, 2);
  });
  std::thread speaking([&] {
    for (int round = 0; round < 3; ++round) original = Speak(model, 2);
  });
  repairing.join();
  speaking.join();
  EXPECT(scores == alone.scores);
  EXPECT(original == spoken);
  EXPECT(repaired == Speak(alone.corrected, 2));
}

void Run(const char* name, const char* directory) {
  const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(name);
  Errors(model);
  LogitsAndLogProbabilities(model);
  EXPECT(model.Decode(model.Encode("the sea")) == "the sea");

  CountedProgress progress;
  const shiftrt::RepairResult repair = shiftrt::PruneAndRepair(model, Settings(model), {}, &progress);
  EXPECT(progress.begun > 0 && progress.done > 0);
  EXPECT(repair.removed.size() == 4 && repair.sites.size() == 4);
  EXPECT(repair.corrected.RemovedLayers() == repair.removed && !repair.merged);
  EXPECT(repair.pruned.Parameters() < repair.corrected.Parameters());
  EXPECT(repair.corrected.Parameters() < model.Parameters());
  EXPECT(model.Without(repair.removed).Parameters() == repair.pruned.Parameters());
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::PruneAndRepair(repair.corrected); }).empty());

  repair.corrected.Save(directory);
  const std::string spoken = Speak(repair.corrected, 2);
  EXPECT(Speak(shiftrt::LanguageModel::Open(directory), 2) == spoken);

  const std::filesystem::path text = std::string(directory) + ".txt";
  std::string some(20000, ' ');  // bytes: the whole text takes minutes under the sanitizers
  std::ifstream(model.Directory() / "calibration.txt").read(some.data(), static_cast<std::streamsize>(some.size()));
  std::ofstream(text) << some;
  const double original = shiftrt::MeasurePerplexity(model, text, "seq128").perplexity;
  const double pruned = shiftrt::MeasurePerplexity(repair.pruned, text, "seq128").perplexity;
  EXPECT(original > 1 && original < pruned);

  TwoThreads(model, repair, Speak(model, 2));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  EXPECT(shiftrt::Version() == std::to_string(SHIFTRT_VERSION_MAJOR) + "." + std::to_string(SHIFTRT_VERSION_MINOR) +
                                   "." + std::to_string(SHIFTRT_VERSION_PATCH));
  try {
    Run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
