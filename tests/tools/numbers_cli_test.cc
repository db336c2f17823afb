// SPDX-License-Identifier: Apache-2.0
// Numbers at the edge of what can be computed, in weights, in text and in settings. Each command is right or refused
// with a message; a result that is not a number is never printed in silence.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "runtime/safetensors.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

enum class Verdict { kRight, kRefused, kEither };

class Numbers : public Cli {
 protected:
  // Calls change(name, values) for each tensor of the model, which is in float32, and writes the result as `to`.
  void ChangeWeights(const std::string& to, const std::function<void(const std::string&, std::span<float>)>& change) {
    fs::remove_all(dir_ / to);
    fs::copy(dir_ / "model", dir_ / to);
    std::vector<std::vector<float>> changed;
    std::vector<NamedTensor> tensors;
    const SafetensorsFile file(dir_ / "model/model.safetensors");
    for (const auto& [name, tensor] : file.tensors()) {
      std::vector<float>& values = changed.emplace_back(tensor.elements());
      std::memcpy(values.data(), tensor.data, tensor.bytes());
      change(name, values);
      tensors.push_back({name, {values.data(), tensor.dtype, tensor.shape}});
    }
    fs::remove(dir_ / to / "model.safetensors");
    WriteSafetensors(dir_ / to / "model.safetensors", tensors);
  }

  // The places of numbers in the JSON of a result that must be there and are not finite: null stands for those.
  static std::vector<std::string> NotFinite(const Json& json, const std::string& where = "") {
    std::vector<std::string> found;
    for (const auto& item : json.items()) {
      const std::string place = where + "/" + item.key();
      const bool measured = item.key().find("perplexity") != std::string::npos || item.key() == "lambda" ||
                            item.key() == "r2_fit" || item.key() == "accuracy" || item.key() == "loss";
      if (measured && item.value().is_null()) found.push_back(place);
      if (item.value().is_number_float() && !std::isfinite(item.value().get<double>())) found.push_back(place);
      if (!item.value().is_structured()) continue;
      for (std::string& one : NotFinite(item.value(), place)) found.push_back(std::move(one));
    }
    return found;
  }

  // Expects that the command refuses with a message, or ends with numbers alone. Returns its status.
  int ExpectRightOrRefused(std::vector<std::string> arguments, const std::string& what) {
    fs::remove(dir_ / "result.json");
    arguments.insert(arguments.end(), {"--json", Path("result.json"), "--quiet"});
    const Outcome outcome = Call(arguments);
    if (outcome.status != 0) {
      EXPECT_TRUE(outcome.status == 1 || outcome.status == 2) << what << ": status " << outcome.status;
      EXPECT_FALSE(outcome.err.empty()) << what;
      EXPECT_FALSE(fs::exists(dir_ / "result.json")) << what;
      return outcome.status;
    }
    const Json json = ReadJson("result.json");
    EXPECT_EQ(fmt::format("{}", fmt::join(NotFinite(json), ", ")), "") << what << ": " << json.dump();
    return 0;
  }

  void ExpectVerdict(Verdict verdict, int status, const std::string& what) const {
    if (verdict == Verdict::kEither) return;
    EXPECT_EQ(status == 0, verdict == Verdict::kRight) << what << ": " << ReadFile(dir_ / "stderr");
  }

  std::vector<std::string> RunOn(const std::string& model, const std::string& calibration, const std::string& more) {
    return Split("run --model " + Path(model) + " --threads 1 --text " + Path("heldout.txt") +
                 " --prompt the --max-tokens 2 --calib " + Path(calibration) +
                 (more.find("--correction") == more.npos ? " --correction lra " : " ") + more);
  }
  double Perplexity(const char* variant) const {
    const Json json = ReadJson("result.json");
    for (const Json& one : json["variants"])
      if (one["name"] == variant) return one["perplexity"].get<double>();
    ADD_FAILURE() << "no " << variant;
    return 0;
  }
};

TEST_F(Numbers, InWeights) {
  struct Case {
    const char* name;
    const char* tensor;  // a part of the names of the tensors that change
    bool all;            // all of their values, or the last
    float value;
    Verdict verdict;
  };
  const Case cases[] = {
      {"a NaN in a projection", "layers.1.mlp.down_proj", false, kNan, Verdict::kRefused},
      {"a NaN in the last norm", "model.norm", false, kNan, Verdict::kRefused},
      {"infinity in a projection", "layers.2.self_attn.o_proj", false, kInfinity, Verdict::kRefused},
      {"minus infinity in the head", "lm_head", false, -kInfinity, Verdict::kEither},
      {"denormals in a projection", "layers.1.mlp.up_proj", true, 1e-40f, Verdict::kRight},
      {"denormals in the embedding", "embed_tokens", true, 1e-40f, Verdict::kRight},
      {"zeros in a projection", "layers.2.mlp.down_proj", true, 0.0f, Verdict::kRight},
      {"zeros in a block", "layers.1.", true, 0.0f, Verdict::kRight},
      {"zeros everywhere", "", true, 0.0f, Verdict::kRight},
      {"1e38 once", "layers.1.mlp.down_proj", false, 1e38f, Verdict::kEither},
      {"1e38 in a projection", "layers.1.mlp.gate_proj", true, 1e38f, Verdict::kEither},
      {"1e38 in a norm", "layers.2.input_layernorm", true, 1e38f, Verdict::kEither},
  };
  for (const Case& one : cases) {
    ChangeWeights("changed", [&](const std::string& name, std::span<float> values) {
      if (name.find(one.tensor) == std::string::npos) return;
      for (float& value : values.last(one.all ? values.size() : 1)) value = one.value;
    });
    for (const std::vector<std::string>& command :
         {RunOn("changed", "calibration.txt:16x64", "--prune layers=1 --lra 4"),
          RunOn("changed", "calibration.txt:16x64", "--prune bi:2,keep=first:1 --correction refit"),
          Split("ppl --threads 1 --model " + Path("changed") + " --text " + Path("heldout.txt")),
          Split("eval --threads 1 --tasks piqa --data " + EvalData() + " --model " + Path("changed"))}) {
      const std::string what = fmt::format("{}, {}", one.name, command[0]);
      const int status = ExpectRightOrRefused(command, what);
      ExpectVerdict(one.verdict, status, what);
    }
  }
  // A model of zeros gives every token the same probability.
  ChangeWeights("changed",
                [&](const std::string&, std::span<float> values) { std::fill(values.begin(), values.end(), 0.0f); });
  ASSERT_EQ(ExpectRightOrRefused(RunOn("changed", "calibration.txt:16x64", "--prune layers=1 --lra 4"), "zeros"), 0);
  for (const char* variant : {"original", "pruned", "lra"}) EXPECT_NEAR(Perplexity(variant), kVocab, 1e-3);
}

TEST_F(Numbers, InTextAndSettings) {
  std::string repeated;
  for (int i = 0; i < 2000; ++i) repeated += " the";
  WriteText(dir_ / "repeated.txt", repeated);
  WriteText(dir_ / "one.txt", " the");
  struct Case {
    const char* calibration;
    const char* more;
    Verdict verdict;
  };
  const Case cases[] = {
      // One repeated token: every row is nearly the same, and the Gram has rank 1 or little more.
      {"repeated.txt:16x64", "--prune layers=1 --lra 4", Verdict::kRight},
      {"repeated.txt:16x64", "--prune layers=1 --lra 4 --lambda 0", Verdict::kRight},
      {"repeated.txt:16x64", "--prune layers=1,2 --correction joint --lra 4", Verdict::kRight},
      {"repeated.txt:16x64", "--prune bi:2,keep=first:1 --correction refit", Verdict::kRight},
      // A rank above the number of fitted tokens, and above the hidden size.
      {"calibration.txt:2x8", "--prune layers=1 --lra 32", Verdict::kRight},
      {"calibration.txt:2x8", "--prune layers=1 --lra 32 --lambda 0", Verdict::kRight},
      {"calibration.txt:16x64", "--prune layers=1 --lra 33", Verdict::kRefused},
      // Sequences of one token.
      {"calibration.txt:64x1", "--prune bi:1 --lra 4", Verdict::kRight},
      {"calibration.txt:1x1", "--prune layers=1 --lra 4", Verdict::kRight},
      {"calibration.txt:64x1", "--prune layers=1 --correction refit", Verdict::kRight},
      {"calibration.txt:64x1", "--prune ppl:1 --lra 4", Verdict::kRefused},
      // The ends of lambda.
      {"calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda 0", Verdict::kRight},
      {"calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda 1e300", Verdict::kRight},
      {"calibration.txt:16x64", "--prune layers=1 --lra full --lambda 1e300", Verdict::kRight},
      {"calibration.txt:16x64", "--prune layers=1 --correction refit --lambda 1e300", Verdict::kRight},
      {"calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda 1e309", Verdict::kRefused},
      {"calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda -1", Verdict::kRefused},
      {"calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda nan", Verdict::kRefused},
  };
  for (const Case& one : cases) {
    const std::string what = fmt::format("{} {}", one.calibration, one.more);
    const int status = ExpectRightOrRefused(RunOn("model", one.calibration, one.more), what);
    ExpectVerdict(one.verdict, status, what);
  }
  // A text of one token has nothing to predict.
  EXPECT_FAILS(Call(Split("ppl --threads 1 --quiet --model " + Path("model") + " --text " + Path("one.txt"))), 1,
               "at least 2 tokens");
  EXPECT_FAILS(
      Call(RunOn("model", "calibration.txt:8x99999", "--prune layers=1 --lra 4")), 2,
      fmt::format("samples of 99999 tokens exceed the {0} positions of the model; ask for at most 8x{0}", kContext));
  // An infinite lambda is a mean update alone.
  ASSERT_EQ(
      ExpectRightOrRefused(RunOn("model", "calibration.txt:16x64", "--prune layers=1 --lra 4 --lambda 1e300"), ""), 0);
  const double limit = Perplexity("lra");
  ASSERT_EQ(ExpectRightOrRefused(RunOn("model", "calibration.txt:16x64", "--prune layers=1 --correction bias"), ""), 0);
  EXPECT_NEAR(Perplexity("bias"), limit, 1e-3 * limit);
}

// A correction that fits few tokens to the last bit explains nothing of others, and says so.
TEST_F(Numbers, ACorrectionThatExplainsNothingSaysSo) {
  const Outcome fitted = Call(RunOn("model", "calibration.txt:2x16", "--quiet --prune layers=1 --lra full --lambda 0"));
  ASSERT_EQ(fitted.status, 0) << fitted.err;
  EXPECT_NE(fitted.out.find("warning: the correction explains nothing of held-out text (R2 "), std::string::npos)
      << fitted.out;
  const Outcome mean = Call(RunOn("model", "calibration.txt:16x64", "--quiet --prune layers=1 --correction bias"));
  EXPECT_EQ(mean.out.find("explains nothing"), std::string::npos) << mean.out;
}

}  // namespace
}  // namespace shiftrt
