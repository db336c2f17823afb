// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>

#include "engine/decoder.h"
#include "runtime/check.h"
#include "runtime/text.h"
#include "tools/options.h"

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
  const std::vector<int32_t> ids = ParseTokenIds(file ? ReadText(argument) : argument);
  if (ids.empty()) FailUsage("--tokens names no token");
  return ids;
}

Matrix<float> Copy(const Rows& rows) {
  const HostRows here = rows.ToHost();
  Matrix<float> out(rows.count(), rows.hidden());
  std::copy_n(here.view().data, out.size(), out.data());
  return out;
}

int Run(const DumpOptions& options) {
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const int64_t layers = model.weights->config.layers;
  std::vector<std::pair<std::string, Matrix<float>>> dumped;
  const auto keep = [&](std::string name) {
    return [&dumped, name](const Rows& rows, const Batch&) { dumped.emplace_back(name, Copy(rows)); };
  };
  // hidden.l is the stream before block l and hidden.L the one after the last: for a pruned model the removed layers'
  // are left out.
  std::vector<Tap> taps;
  const std::vector<int64_t> kept = model.plan.KeptLayers();
  for (int64_t layer : kept) {
    if (options.hidden) taps.push_back({layer, TapPoint::kInput, keep(fmt::format("hidden.{}", layer))});
    if (options.delta) taps.push_back({layer, TapPoint::kUpdate, keep(fmt::format("delta.{}", layer))});
  }
  if (options.hidden) taps.push_back({layers, TapPoint::kInput, keep(fmt::format("hidden.{}", layers))});
  Decoder decoder(context, model.weights, model.plan, std::move(taps));
  Batch batch;
  batch.Add(ReadTokens(options.tokens));
  const Rows h = decoder.Forward(batch);
  if (options.logits) dumped.emplace_back("logits", decoder.Logits(h));

  std::vector<NamedTensor> tensors;
  for (const auto& [name, matrix] : dumped)
    tensors.push_back({name, {matrix.data(), DType::kFloat32, {matrix.rows(), matrix.cols()}}});
  WriteSafetensors(options.out, tensors);
  fmt::print("{}: {} tensors of {} tokens\n", options.out, tensors.size(), batch.size());
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
