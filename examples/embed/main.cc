// SPDX-License-Identifier: Apache-2.0
// Prunes and repairs a model inside another program, and lets the repaired model speak.
#include <cstdio>

#include "engine/generate.h"
#include "models/model.h"
#include "shift/pipeline.h"

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "demo";
  const shiftrt::Context context = shiftrt::Context::Default();
  const shiftrt::Model model = shiftrt::OpenModel(name);
  const auto text = shiftrt::ParseCalibration((model.directory / "calibration.txt").string() + ":32x128");
  const auto calibration = shiftrt::LoadCalibration(text, model.RequireTokenizer(), /*seed=*/0);
  shiftrt::ShiftOptions options;
  options.prune = shiftrt::ParsePrune("bi:0.25");
  options.fit.rank = shiftrt::RankSpec::Fixed(32);
  shiftrt::NoProgress quiet;
  const auto result = shiftrt::Shift({context, model, calibration, quiet}, options);
  shiftrt::Decoder repaired(context, model.weights, result.corrected);
  const auto prompt = model.RequireTokenizer().EncodeWithBos("It is a truth universally acknowledged");
  const auto reply = shiftrt::Generate(repaired, prompt, /*max_tokens=*/24, {}, /*seed=*/0, {});
  std::printf("%zu layers removed:%s\n", result.selection.removed.size(),
              model.RequireTokenizer().Decode(reply.tokens).c_str());
}
