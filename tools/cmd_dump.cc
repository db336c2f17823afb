// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>

#include "shiftrt/runner.h"
#include "tools/options.h"
#include "tools/tensor_file.h"
#include "tools/texts.h"

namespace shiftrt {

namespace {

struct DumpOptions {
  CommonOptions common;
  std::string tokens, out;
  bool logits = false, hidden = false, delta = false;
};

// Ids from the argument, or from the file it names. A list of ids may be longer than a file's name can be.
std::vector<int32_t> ReadTokens(const std::string& argument) {
  std::error_code not_a_name;
  const bool file = std::filesystem::is_regular_file(argument, not_a_name);
  std::vector<int32_t> ids = ParseTokenIds(file ? ReadFileText(argument) : argument);
  if (ids.empty()) FailUsage("--tokens names no token");
  return ids;
}

int Run(const DumpOptions& options) {
  const Resources resources = options.common.MakeResources();
  const LanguageModel model = options.common.OpenLanguageModel();
  const std::vector<int32_t> tokens = ReadTokens(options.tokens);
  ModelRunner runner(model, resources);
  std::vector<FileMatrix> tensors;
  const auto keep = [&](const char* name) {
    return [&tensors, name, rows = std::ssize(tokens)](int64_t layer, std::span<const float> values) {
      tensors.push_back({fmt::format("{}.{}", name, layer), rows, {values.begin(), values.end()}});
    };
  };
  // A pruned model has no states of its removed layers.
  if (options.hidden) runner.HiddenStates(tokens, keep("hidden"));
  if (options.delta) runner.Updates(tokens, keep("delta"));
  if (options.logits) {
    FileMatrix logits{"logits", std::ssize(tokens), std::vector<float>(tokens.size() * model.Shape().vocabulary)};
    runner.Logits(tokens, logits.values);
    tensors.push_back(std::move(logits));
  }
  WriteTensors(options.out, tensors);
  fmt::print("{}: {} tensors of {} tokens\n", options.out, tensors.size(), tokens.size());
  return 0;
}

}  // namespace

Command AddDump(CLI::App& app) {
  auto options = std::make_shared<DumpOptions>();
  options->common.AddTo(app);
  options->common.AddLoraTo(app);
  app.add_option("--tokens", options->tokens, "token ids, or a file with token ids")->required();
  app.add_option("--out", options->out, "safetensors file to write")->required()->check(FileOutput());
  auto* logits = app.add_flag("--logits", options->logits, "write logits (tokens, vocab)");
  auto* hidden = app.add_flag("--hidden", options->hidden,
                              "write hidden.0 .. hidden.L: the residual stream before each block and after the last");
  auto* delta =
      app.add_flag("--delta", options->delta, "write delta.0 .. delta.L-1: what each block adds to the stream");
  app.footer("Example:\n  shiftrt dump --model demo --tokens \"1 2 3\" --logits --hidden --delta --out F.safetensors");
  return [=] {
    if (logits->count() + hidden->count() + delta->count() == 0)
      FailUsage("dump: ask for at least one of --logits, --hidden, --delta");
    return Run(*options);
  };
}

}  // namespace shiftrt
