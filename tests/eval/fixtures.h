// SPDX-License-Identifier: Apache-2.0
// Models and data for the tests of eval/.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "eval/evaluate.h"
#include "models/model.h"
#include "runtime/files.h"
#include "tests/temporary_directory.h"
#include "tests/test_directory.h"

namespace shiftrt {

inline std::filesystem::path Goldens() { return TestDirectory() / "goldens"; }
inline std::string GoldenData() { return (Goldens() / "eval/data").string(); }

// The results of lm-evaluation-harness for the rows of GoldenData() (tests/goldens/make_eval.py).
inline const nlohmann::json& Expected() {
  static const nlohmann::json expected = nlohmann::json::parse(ReadFile(Goldens() / "eval/expected.json"));
  return expected;
}

// The random model of the goldens (seed 1) with one of their tokenizers, and with so many positions; 0: as many as they
// have.
inline Model GoldenEvalModel(const std::string& tokenizer, uint64_t seed = 1, int64_t positions = 0) {
  const TemporaryDirectory directory;
  AtomicFile config(directory.path() / "shape.json");
  nlohmann::json shape = Expected()["config"];
  if (positions > 0) shape["max_position_embeddings"] = positions;
  config.Write(shape.dump());
  config.Commit();
  WriteRandomCheckpoint(directory.path() / "shape.json", DType::kFloat32, seed, directory.path());
  Model model;
  model.name = tokenizer;
  model.weights = LoadWeights(directory.path());
  model.tokenizer = LoadTokenizer(Goldens() / "tokenizers" / tokenizer);
  model.plan = DepthPlan::Original(model.weights->config.layers);
  return model;
}

// A plan where nothing matters but its stages.
inline Variant Plain(const std::string& name, DepthPlan plan) { return {name, std::move(plan)}; }

inline Dataset GoldenDataset(const std::string& task, std::optional<int64_t> shots = 0) {
  return LoadDataset(*ParseTasks(task)[0], {.data = {GoldenData()}, .shots = shots, .allow_code = true});
}

}  // namespace shiftrt
