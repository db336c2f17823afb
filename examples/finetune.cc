// SPDX-License-Identifier: Apache-2.0
// Trains a model with LoRA for some steps, shows the loss, and saves the result: finetune MODEL TEXT DIRECTORY STEPS
#include <shiftrt/shiftrt.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::signal(SIGINT, [](int) { shiftrt::RequestInterrupt(); });  // the checkpoint is written before the call ends
  try {
    const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(argv[1]);
    shiftrt::FinetuneSettings settings;
    settings.lora.rank = 4;
    settings.text = argv[2];
    settings.length = 64;
    settings.validation = 4;
    settings.batch = 2;
    settings.steps = std::atoi(argv[4]);
    settings.checkpoint = std::string(argv[3]) + ".checkpoint";
    shiftrt::FinetuneObserver observer;
    observer.begin = [](const shiftrt::TrainingOutline& outline) { std::printf("%s\n", outline.trained.c_str()); };
    observer.step = [](const shiftrt::TrainingHistory& history, int64_t steps) {
      if (history.steps() > 0)
        std::printf("step %td of %td: loss %.3f\n", static_cast<ptrdiff_t>(history.steps()),
                    static_cast<ptrdiff_t>(steps), history.losses.back());
    };
    const shiftrt::FinetunedModel tuned = shiftrt::Finetune(model, settings, {}, observer);
    tuned.model.Save(argv[3]);  // the factors; `shiftrt` and LanguageModel::Open() merge them
    std::filesystem::remove(settings.checkpoint);
    return 0;
  } catch (const shiftrt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
