// SPDX-License-Identifier: Apache-2.0
#include "engine/gradient_stages.h"

#include "engine/gradient_block.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

// h + (h P) Q + b, or h + h A + b.
class AdapterPass {
 public:
  AdapterPass(const StagePass& pass, const TrainedStage& stage, Arena& arena, int64_t tokens)
      : ops_(pass.ops), trained_(stage.parameters), lra_(*stage.stage.adapter().lra) {
    const int64_t hidden = lra_.hidden(), rank = lra_.rank();
    a_ = Take(trained_.a, lra_.a);
    p_ = Take(trained_.p, lra_.p);
    q_ = Take(trained_.q, lra_.q);
    b_ = Take(trained_.b, lra_.b);
    inner_ = arena.Get(tokens, lra_.low_rank() ? rank : hidden);
    if (lra_.low_rank()) dinner_ = arena.Get(tokens, rank);
  }

  void Forward(MatrixView<float> h) {
    ops_.MatMulRight(h, lra_.low_rank() ? p_ : a_, false, inner_);
    if (lra_.low_rank()) {
      ops_.MatMulRight(inner_, q_, true, h);
    } else {
      ops_.AddTo(inner_, h);
    }
    ops_.AddRow(b_, h);
  }

  void Backward(const StreamGradient& stream) {
    const MatrixView<float>& g = stream.gradient;
    if (Wanted(trained_.b)) ops_.BiasGradient(g, trained_.b.gradient);
    if (!lra_.low_rank()) {
      if (Wanted(trained_.a)) ops_.MatMulWeightGradient(stream.input, g, trained_.a.gradient);
      if (!stream.wanted) return;
      ops_.MatMul(g, a_, {}, false, inner_);  // g A'
      return ops_.AddTo(inner_, g);
    }
    if (Wanted(trained_.q)) {
      ops_.MatMulRight(stream.input, p_, false, inner_);
      ops_.MatMulWeightGradient(inner_, g, trained_.q.gradient);
    }
    if (!stream.wanted && !Wanted(trained_.p)) return;
    ops_.MatMul(g, q_, {}, false, dinner_);  // g Q'
    if (Wanted(trained_.p)) ops_.MatMulWeightGradient(stream.input, dinner_, trained_.p.gradient);
    if (stream.wanted) ops_.MatMul(dinner_, p_, {}, true, g);
  }

 private:
  static bool Wanted(const Parameter& parameter) { return parameter.gradient.data != nullptr; }
  static Operand Take(const Parameter& parameter, const Matrix<float>& stored) {
    if (parameter.value.data != nullptr) return {{}, parameter.value};
    if (stored.empty()) return {};
    return {{stored.data(), DType::kFloat32, {stored.rows(), stored.cols()}}};
  }

  GradientOps& ops_;
  const StageParameters& trained_;
  const Lra& lra_;
  Operand a_, p_, q_, b_;
  MatrixView<float> inner_, dinner_;  // (tokens, rank); of a full adapter inner_ is (tokens, hidden)
};

// Of a parameter that a stage has, or of one that it lacks (rows 0).
struct Expected {
  size_t stage;
  std::string name;
  int64_t rows, cols;
};

template <typename View>
void CheckView(const Expected& expected, const char* what, const View& view) {
  if (view.data == nullptr) return;
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

void CheckBlock(const Weights& weights, const TrainedStage& stage) {
  const BlockStage& block = stage.stage.block();
  const StageParameters& given = stage.parameters;
  const std::span<const BlockTensor> rows = BlockTensors();
  const size_t i = stage.index;
  Check((given.tensors.empty() || given.tensors.size() == rows.size()) &&
            (given.loras.empty() || given.loras.size() == rows.size()),
        "stage {} of the plan: parameters of {} tensors and {} low-rank changes, expected {} of each or none", i,
        given.tensors.size(), given.loras.size(), rows.size());
  for (const Parameter* parameter : {&given.a, &given.p, &given.q, &given.b})
    CheckParameter({i, "adapter's matrix (it is a block)", 0, 0}, *parameter);
  for (size_t r = 0; r < rows.size(); ++r) {
    const BlockTensor& row = rows[r];
    const TensorView& tensor = TensorsOf(weights, block).*row.member;
    const bool read = row.half == Halves::kMlp ? RunsMlp(block.halves) : RunsAttention(block.halves);
    const bool matrix = row.kind == BlockTensor::Kind::kMatrix, has = read && !tensor.empty();
    const int64_t output = has ? Size(weights.config, row.output) : 0, input = Size(weights.config, row.input);
    if (!given.tensors.empty())
      CheckParameter({i, row.name, has && !matrix ? 1 : output, matrix ? input : output}, given.tensors[r]);
    if (given.loras.empty() || given.loras[r].empty()) continue;
    const auto& [a, b] = given.loras[r];
    const int64_t rank = matrix ? a.value.rows : 0;
    Check(b.value.data != nullptr, "stage {} of the plan: the low-rank change of {} has a factor a but no b", i,
          row.name);
    CheckParameter({i, fmt::format("factor a of {}", row.name), has ? rank : 0, input}, a);
    CheckParameter({i, fmt::format("factor b of {}", row.name), has && matrix ? output : 0, rank}, b);
  }
}

void CheckAdapter(const TrainedStage& stage) {
  const StageParameters& given = stage.parameters;
  const Lra& lra = *stage.stage.adapter().lra;
  Check(given.tensors.empty() && given.loras.empty(),
        "stage {} of the plan is an adapter and has no tensors of a block", stage.index);
  const auto check = [&](const char* name, const Parameter& parameter, const Matrix<float>& matrix) {
    CheckParameter({stage.index, fmt::format("adapter's matrix {}", name), matrix.rows(), matrix.cols()}, parameter);
  };
  check("A", given.a, lra.a);
  check("P", given.p, lra.p);
  check("Q", given.q, lra.q);
  check("b", given.b, lra.b);
}

}  // namespace

int64_t StageFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens, Direction direction) {
  return stage.stage.Visit([&](const BlockStage&) { return BlockFloats(pass, stage, tokens, direction); },
                           [&](const AdapterStage&) {
                             Arena arena;
                             const AdapterPass measured(pass, stage, arena, tokens);
                             return arena.peak();
                           });
}

int64_t KeptFloats(const StagePass& pass, const TrainedStage& stage, int64_t tokens) {
  return stage.stage.Visit([&](const BlockStage&) { return BlockKeptFloats(pass, stage, tokens); },
                           [](const AdapterStage&) { return int64_t{0}; });
}

void RunForward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory, MatrixView<float> h) {
  stage.stage.Visit([&](const BlockStage&) { BlockForward(pass, stage, memory, h); },
                    [&](const AdapterStage&) {
                      Arena arena(memory.scratch);
                      AdapterPass(pass, stage, arena, h.rows).Forward(h);
                    });
}

void RunBackward(const StagePass& pass, const TrainedStage& stage, const StageMemory& memory,
                 const StreamGradient& stream) {
  stage.stage.Visit([&](const BlockStage&) { BlockBackward(pass, stage, memory, stream); },
                    [&](const AdapterStage&) {
                      Arena arena(memory.scratch);
                      AdapterPass(pass, stage, arena, stream.input.rows).Backward(stream);
                    });
}

void CheckParameters(const Weights& weights, const TrainedStage& stage) {
  stage.stage.Visit([&](const BlockStage&) { CheckBlock(weights, stage); },
                    [&](const AdapterStage&) { CheckAdapter(stage); });
}

}  // namespace shiftrt
