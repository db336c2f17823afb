// SPDX-License-Identifier: Apache-2.0
#include "tools/paper/paper_tasks.h"

#include <algorithm>
#include <iterator>

#include "eval/task.h"
#include "tools/paper/paper.h"

namespace shiftrt {

namespace {

// The paper's per-benchmark tables ("main_no_ft_summary" in full, and "qwen14b_full"), a quarter of the layers removed:
// percent on the seven tasks in the order of `paper7`.
struct TaskRow {
  std::string_view model, criterion, variant;
  double accuracy[7];
};
constexpr TaskRow kRows[] = {
    {"Qwen2-1.5B", "", "original", {73.36, 75.46, 65.41, 66.22, 66.16, 36.09, 36.40}},
    {"Qwen2-1.5B", "bi", "pruned", {55.57, 62.51, 43.17, 55.01, 45.20, 28.58, 30.40}},
    {"Qwen2-1.5B", "bi", "lra", {57.74, 64.80, 44.88, 56.12, 48.32, 26.71, 29.40}},
    {"Qwen2-1.5B", "reverse*", "pruned", {62.84, 58.81, 40.00, 56.75, 30.98, 26.19, 30.40}},
    {"Qwen2-1.5B", "reverse*", "lra", {64.77, 62.08, 41.25, 59.98, 36.20, 26.88, 28.80}},
    {"Qwen2-1.5B", "magnitude-l1", "pruned", {61.74, 65.83, 43.02, 51.93, 51.89, 26.45, 31.20}},
    {"Qwen2-1.5B", "magnitude-l1", "lra", {62.29, 67.68, 45.37, 53.99, 52.57, 25.60, 31.80}},
    {"Qwen2-1.5B", "magnitude-l2", "pruned", {61.47, 62.73, 37.04, 50.99, 43.39, 23.29, 27.40}},
    {"Qwen2-1.5B", "magnitude-l2", "lra", {62.05, 64.58, 41.04, 51.70, 45.79, 23.89, 31.40}},
    {"Qwen2-1.5B", "taylor", "pruned", {62.72, 62.40, 42.02, 57.85, 38.76, 27.99, 29.80}},
    {"Qwen2-1.5B", "taylor", "lra", {66.54, 63.60, 42.46, 59.83, 40.95, 26.79, 28.20}},
    {"Qwen2-1.5B", "ppl", "pruned", {61.31, 63.60, 41.72, 54.46, 42.34, 27.90, 28.80}},
    {"Qwen2-1.5B", "ppl", "lra", {62.17, 65.23, 43.23, 58.72, 48.70, 26.88, 29.40}},
    {"Qwen1.5-7B", "", "original", {81.90, 78.40, 76.97, 66.14, 70.71, 42.83, 41.80}},
    {"Qwen1.5-7B", "bi", "pruned", {74.40, 65.83, 56.62, 60.06, 43.43, 32.08, 32.00}},
    {"Qwen1.5-7B", "bi", "lra", {76.54, 67.03, 55.54, 63.93, 45.50, 32.00, 29.20}},
    {"Qwen1.5-7B", "reverse*", "pruned", {63.33, 65.34, 51.05, 56.59, 43.47, 31.40, 33.60}},
    {"Qwen1.5-7B", "reverse*", "lra", {79.27, 67.52, 53.57, 63.30, 47.26, 33.62, 32.00}},
    {"Qwen1.5-7B", "magnitude-l1", "pruned", {56.02, 54.57, 34.77, 51.70, 35.14, 26.02, 26.80}},
    {"Qwen1.5-7B", "magnitude-l1", "lra", {61.59, 66.16, 40.39, 51.54, 55.56, 26.11, 31.80}},
    {"Qwen1.5-7B", "magnitude-l2", "pruned", {60.52, 60.83, 36.69, 50.51, 44.49, 24.57, 29.20}},
    {"Qwen1.5-7B", "magnitude-l2", "lra", {61.96, 64.36, 36.90, 52.17, 49.33, 26.88, 28.60}},
    {"Qwen1.5-7B", "taylor", "pruned", {54.53, 69.21, 58.95, 58.64, 53.20, 30.97, 32.80}},
    {"Qwen1.5-7B", "taylor", "lra", {62.35, 70.40, 57.33, 59.27, 57.53, 30.80, 33.60}},
    {"Qwen1.5-7B", "ppl", "pruned", {38.53, 54.03, 27.31, 49.33, 26.39, 25.85, 29.80}},
    {"Qwen1.5-7B", "ppl", "lra", {47.80, 56.75, 29.87, 50.75, 30.89, 22.44, 24.20}},
    {"Llama-3.1-8B-Instruct", "", "original", {83.98, 79.98, 79.27, 74.19, 81.78, 55.03, 43.00}},
    {"Llama-3.1-8B-Instruct", "bi", "pruned", {77.74, 68.23, 60.62, 66.46, 54.80, 40.78, 31.60}},
    {"Llama-3.1-8B-Instruct", "bi", "lra", {82.14, 70.84, 66.52, 71.82, 64.60, 40.61, 34.80}},
    {"Llama-3.1-8B-Instruct", "reverse*", "pruned", {62.23, 59.85, 27.58, 55.72, 36.03, 30.29, 31.60}},
    {"Llama-3.1-8B-Instruct", "reverse*", "lra", {62.42, 70.84, 64.26, 71.82, 64.23, 44.11, 35.80}},
    {"Llama-3.1-8B-Instruct", "magnitude-l1", "pruned", {54.83, 55.43, 27.09, 48.62, 25.17, 25.51, 28.00}},
    {"Llama-3.1-8B-Instruct", "magnitude-l1", "lra", {49.82, 59.58, 30.10, 51.70, 37.04, 22.10, 25.60}},
    {"Llama-3.1-8B-Instruct", "magnitude-l2", "pruned", {45.57, 51.80, 27.08, 49.72, 26.05, 25.00, 26.80}},
    {"Llama-3.1-8B-Instruct", "magnitude-l2", "lra", {53.00, 59.09, 29.02, 51.78, 37.63, 21.16, 25.40}},
    {"Llama-3.1-8B-Instruct", "taylor", "pruned", {62.23, 59.74, 27.56, 55.80, 35.98, 30.20, 31.60}},
    {"Llama-3.1-8B-Instruct", "taylor", "lra", {62.42, 70.73, 64.21, 71.67, 64.18, 44.11, 35.80}},
    {"Llama-3.1-8B-Instruct", "ppl", "pruned", {80.09, 72.36, 65.56, 70.17, 63.17, 41.21, 35.60}},
    {"Llama-3.1-8B-Instruct", "ppl", "lra", {81.71, 73.67, 66.66, 70.80, 65.99, 40.87, 35.80}},
    {"Vicuna-7B-v1.5", "", "original", {80.55, 77.26, 73.76, 69.61, 75.63, 45.82, 45.00}},
    {"Vicuna-7B-v1.5", "bi", "pruned", {64.07, 66.65, 59.95, 66.38, 56.65, 35.24, 36.40}},
    {"Vicuna-7B-v1.5", "bi", "lra", {69.63, 66.92, 56.63, 66.85, 58.63, 34.81, 35.20}},
    {"Vicuna-7B-v1.5", "reverse*", "pruned", {63.27, 66.16, 53.76, 62.90, 55.51, 35.32, 37.40}},
    {"Vicuna-7B-v1.5", "reverse*", "lra", {68.56, 64.36, 51.86, 64.33, 53.32, 34.47, 33.80}},
    {"Vicuna-7B-v1.5", "magnitude-l1", "pruned", {37.83, 52.34, 26.43, 47.99, 26.01, 27.05, 26.40}},
    {"Vicuna-7B-v1.5", "magnitude-l1", "lra", {39.05, 53.05, 26.14, 49.96, 25.34, 26.88, 25.20}},
    {"Vicuna-7B-v1.5", "magnitude-l2", "pruned", {37.92, 52.77, 26.04, 48.86, 25.13, 28.41, 26.60}},
    {"Vicuna-7B-v1.5", "magnitude-l2", "lra", {54.74, 52.45, 25.80, 50.36, 24.96, 26.28, 24.60}},
    {"Vicuna-7B-v1.5", "taylor", "pruned", {77.68, 65.45, 57.79, 67.01, 56.86, 37.03, 34.80}},
    {"Vicuna-7B-v1.5", "taylor", "lra", {79.82, 65.45, 57.70, 67.40, 56.69, 34.64, 35.00}},
    {"Vicuna-7B-v1.5", "ppl", "pruned", {75.38, 65.45, 57.48, 64.64, 55.01, 34.13, 33.80}},
    {"Vicuna-7B-v1.5", "ppl", "lra", {72.35, 62.13, 50.64, 61.40, 47.22, 31.40, 30.40}},
    {"Qwen2.5-14B", "", "original", {86.27, 81.07, 82.91, 75.14, 82.45, 58.87, 45.20}},
    {"Qwen2.5-14B", "bi", "pruned", {66.51, 67.03, 54.66, 63.30, 50.97, 36.69, 34.20}},
    {"Qwen2.5-14B", "bi", "lra", {70.52, 67.46, 59.20, 71.35, 56.06, 37.46, 32.20}},
    {"Qwen2.5-14B", "reverse*", "pruned", {62.23, 59.19, 42.48, 58.01, 40.32, 31.83, 33.00}},
    {"Qwen2.5-14B", "reverse*", "lra", {64.92, 66.92, 51.90, 66.61, 48.57, 34.90, 30.80}},
};

// The paper's name of the model: of what the user called it, or of a part of its directory
// ("models--Qwen--Qwen2-1.5B" in the Hugging Face cache).
std::string PaperModelOf(const LanguageModel& model) {
  std::string name = PaperModel(model.Name());
  for (const auto& part : model.Directory()) {
    const std::string folder = part.string();
    const size_t repository = folder.rfind("--");
    if (name.empty()) name = PaperModel(repository == std::string::npos ? folder : folder.substr(repository + 2));
  }
  return name;
}

}  // namespace

PaperSetting PaperSettingOf(const LanguageModel& model, const std::string& criterion,
                            std::span<const BlockPart> removed) {
  const bool whole =
      std::all_of(removed.begin(), removed.end(), [](const BlockPart& part) { return part.halves == Halves::kBoth; });
  return {PaperModelOf(model), whole && std::ssize(removed) == model.Shape().layers / 4 ? criterion : ""};
}

PaperSetting PaperSettingOf(const LanguageModel& saved) {
  const bool whole = saved.HalfBlocks() == 0;
  const std::vector<int64_t> removed = saved.RemovedLayers();
  return PaperSettingOf(saved, saved.MadeBy() != nullptr && whole ? saved.MadeBy()->criterion : "",
                        std::vector<BlockPart>(removed.begin(), removed.end()));
}

std::optional<double> PaperAccuracy(const PaperSetting& setting, std::string_view variant, std::string_view task) {
  const std::vector<const Task*> tasks = ParseTasks("paper7");
  const auto column =
      std::find_if(tasks.begin(), tasks.end(), [&](const Task* candidate) { return candidate->name == task; });
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const TaskRow& candidate) {
    return candidate.model == setting.model && candidate.variant == variant &&
           (variant == "original" || candidate.criterion == setting.criterion);
  });
  if (column == tasks.end() || row == std::end(kRows)) return std::nullopt;
  return row->accuracy[column - tasks.begin()] / 100;
}

}  // namespace shiftrt
