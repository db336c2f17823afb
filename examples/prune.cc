// SPDX-License-Identifier: Apache-2.0
// Prunes and repairs a model, shows how well each adapter explains what it replaces, generates text with the repaired
// model, and saves it: prune [MODEL [DIRECTORY]]
#include <shiftrt/shiftrt.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(argc > 1 ? argv[1] : "demo");
    shiftrt::Recipe recipe;
    recipe.prune = {.criterion = "bi", .ratio = 0.25};  // a quarter of the layers, by block influence
    recipe.rank = shiftrt::RankSpec::Fixed(32);
    recipe.text = {(model.Directory() / "calibration.txt").string(), 32, 128};  // 32 samples of 128 tokens
    const shiftrt::RepairResult repair = shiftrt::Repair(model, recipe);

    std::printf("layers removed: %s\n", shiftrt::Names(repair.report.selection.removed).c_str());
    for (const shiftrt::FitReport& fit : repair.report.sites)
      std::printf("  layer %s: R2 %.3f on text that was not fitted\n", fit.name.c_str(), fit.r2_heldout);
    shiftrt::ModelRunner repaired(repair.corrected);
    const char* const prompt = "It is a truth universally acknowledged";
    std::printf("%s%s\n", prompt, repaired.Generate(prompt, {.max_tokens = 24}).text.c_str());
    if (argc > 2) repair.corrected.Save(argv[2]);
    return 0;
  } catch (const shiftrt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
