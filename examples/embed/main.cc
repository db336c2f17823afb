// SPDX-License-Identifier: Apache-2.0
// Prunes and repairs a model inside another program, and generates text with the repaired model.
#include <shiftrt/shiftrt.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(argc > 1 ? argv[1] : "demo");
    shiftrt::RepairSettings settings;
    settings.prune = "bi:0.25";
    settings.rank = "32";
    settings.text = (model.Directory() / "calibration.txt").string() + ":32x128";
    const shiftrt::RepairResult repair = shiftrt::PruneAndRepair(model, settings);

    shiftrt::ModelRunner repaired(repair.corrected);
    const shiftrt::Generation reply = repaired.Generate("It is a truth universally acknowledged", {.max_tokens = 24});
    std::printf("%zu layers removed:%s\n", repair.removed.size(), reply.text.c_str());
    return 0;
  } catch (const shiftrt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
