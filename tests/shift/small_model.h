// SPDX-License-Identifier: Apache-2.0
// A random model of six layers, sixteen wide, with random calibration batches: what tests of the method run on.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "models/model.h"
#include "runtime/random.h"
#include "text/calibration.h"

namespace shiftrt::test {

class SmallModel : public testing::Test {
 protected:
  static constexpr int64_t kLayers = 6, kWidth = 16, kVocab = 64;

  SmallModel() {
    directory_ = std::filesystem::temp_directory_path() /
                 ("shiftrt_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) +
                  std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
    model_ = MakeModel(3);
    calibration_ = MakeCalibration(4, 32);
  }
  ~SmallModel() override { std::filesystem::remove_all(directory_); }

  // `family`: the architecture and the settings that are its own, as the first entries of a config.json.
  Model MakeModel(uint64_t seed, const std::string& family = R"("architectures": ["LlamaForCausalLM"],
               "model_type": "llama", "rms_norm_eps": 1e-6, "hidden_act": "silu",)") const {
    std::ofstream(directory_ / "shape.json") << "{" << family << R"("hidden_size": 16, "vocab_size": 64,
               "intermediate_size": 24, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
               "max_position_embeddings": 64, "rope_theta": 10000.0,
               "tie_word_embeddings": false, "torch_dtype": "float32"})";
    const auto place = directory_ / ("model" + std::to_string(seed));
    WriteRandomCheckpoint(directory_ / "shape.json", DType::kFloat32, seed, place);
    Model model;
    model.name = "random";
    model.directory = place;
    model.weights = LoadWeights(place);
    model.plan = DepthPlan::Original(kLayers);
    return model;
  }

  // Samples of 32 tokens, one a batch; every eighth is held out.
  static CalibrationSet MakeCalibration(uint64_t seed, int samples) {
    Random random(seed);
    CalibrationSet set;
    set.source = "random";
    for (int sample = 0; sample < samples; ++sample) {
      std::vector<int32_t> tokens(32);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(kVocab));
      Batch batch;
      batch.Add(tokens);
      const bool heldout = sample % 8 == 7;
      (heldout ? set.heldout : set.fit).push_back(batch);
      (heldout ? set.heldout_tokens : set.fit_tokens) += batch.size();
    }
    return set;
  }

  std::filesystem::path directory_;
  Context context_;
  Model model_;
  CalibrationSet calibration_;
};

}  // namespace shiftrt::test
