// SPDX-License-Identifier: Apache-2.0
#include "engine/parameters.h"

#include <algorithm>

#include "runtime/check.h"

namespace shiftrt {

namespace {

bool HasGradient(const Parameter& parameter) { return !parameter.gradient.empty(); }

// The shape of a parameter that a stage has; rows are 0 for one that it lacks.
struct Expected {
  size_t stage;
  std::string name;
  int64_t rows, cols;
};

template <typename View>
void CheckView(const Expected& expected, const char* what, const View& view) {
  if (view.empty()) return;
  const auto& [stage, name, rows, cols] = expected;
  Check(rows > 0, "stage {} of the plan has no {} that could be trained", stage, name);
  Check(view.rows == rows && view.cols == cols, "stage {} of the plan: a {} of ({}, {}) for {}, expected ({}, {})",
        stage, what, view.rows, view.cols, name, rows, cols);
  Check(view.stride == view.cols, "stage {} of the plan: the {} of {} has rows that are {} apart, expected {}", stage,
        what, name, view.stride, view.cols);
}

void CheckParameter(const Expected& expected, const Parameter& parameter) {
  CheckView(expected, "value", parameter.value);
  CheckView(expected, "gradient", parameter.gradient);
}

void CheckBlock(const Weights& weights, size_t i, const BlockStage& block, const StageParameters& given) {
  const std::span<const BlockTensor> rows = BlockTensors();
  const ModelConfig config = ConfigOfBlock(weights.config, block.layer, MlpUnits(TensorsOf(weights, block)));
  Check((given.tensors.empty() || given.tensors.size() == rows.size()) &&
            (given.loras.empty() || given.loras.size() == rows.size()),
        "stage {} of the plan: parameters of {} tensors and {} low-rank changes, expected {} of each or none", i,
        given.tensors.size(), given.loras.size(), rows.size());
  for (const Parameter* parameter : {&given.a, &given.p, &given.q, &given.b})
    CheckParameter({i, "adapter's matrix (it is a block)", 0, 0}, *parameter);
  const size_t experts = TensorsOf(weights, block).experts.size();
  Check(given.experts.empty() || given.experts.size() == experts,
        "stage {} of the plan: gradients of {} experts, expected {} or none", i, given.experts.size(), experts);
  for (size_t r = 0; r < rows.size(); ++r) {
    const BlockTensor& row = rows[r];
    const TensorView& tensor = TensorsOf(weights, block).*row.member;
    const bool matrix = row.kind == BlockTensor::Kind::kMatrix, has = Reads(block.halves, row) && !tensor.empty();
    const int64_t output = has ? Size(config, row.output) : 0, input = Size(config, row.input);
    if (!given.tensors.empty())
      CheckParameter({i, row.name, has && !matrix ? 1 : output, matrix ? input : output}, given.tensors[r]);
    if (given.loras.empty() || given.loras[r].empty()) continue;
    const auto& [a, b] = given.loras[r];
    const int64_t rank = matrix ? a.value.rows : 0;
    Check(!b.value.empty(), "stage {} of the plan: the low-rank change of {} has a factor a but no b", i, row.name);
    CheckParameter({i, fmt::format("factor a of {}", row.name), has ? rank : 0, input}, a);
    CheckParameter({i, fmt::format("factor b of {}", row.name), has && matrix ? output : 0, rank}, b);
  }
}

void CheckAdapter(size_t i, const Lra& lra, const StageParameters& given) {
  Check(given.tensors.empty() && given.loras.empty(),
        "stage {} of the plan is an adapter and has no tensors of a block", i);
  const auto check = [&](const char* name, const Parameter& parameter, const Matrix<float>& matrix) {
    CheckParameter({i, fmt::format("adapter's matrix {}", name), matrix.rows(), matrix.cols()}, parameter);
  };
  check("A", given.a, lra.a);
  check("P", given.p, lra.p);
  check("Q", given.q, lra.q);
  check("b", given.b, lra.b);
}

}  // namespace

bool StageParameters::AnyGradient() const {
  const auto any = [](const auto& list, const auto& has) { return std::any_of(list.begin(), list.end(), has); };
  return any(tensors, HasGradient) || !experts.empty() ||
         any(loras, [](const LoraParameters& lora) { return HasGradient(lora.a) || HasGradient(lora.b); }) ||
         HasGradient(a) || HasGradient(p) || HasGradient(q) || HasGradient(b);
}

size_t TrainedParameters::LowestStage(size_t stage_count) const {
  const auto lowest =
      std::find_if(stages.begin(), stages.end(), [](const StageParameters& stage) { return stage.AnyGradient(); });
  return lowest == stages.end() ? stage_count : static_cast<size_t>(lowest - stages.begin());
}

void CheckParameters(const Weights& weights, size_t index, const Stage& stage, const StageParameters& given) {
  stage.Visit([&](const BlockStage& block) { CheckBlock(weights, index, block, given); },
              [&](const AdapterStage& adapter) { CheckAdapter(index, *adapter.lra, given); });
}

}  // namespace shiftrt
