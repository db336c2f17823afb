// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "engine/generate.h"
#include "runtime/check.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct GenerateOptions {
  CommonOptions common;
  std::string prompt;
  int64_t max_tokens = 64;
  SamplingOptions sampling;
};

int Run(const GenerateOptions& options) {
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const std::vector<int32_t> prompt = model.RequireTokenizer().EncodeWithBos(options.prompt);
  CheckFits(static_cast<int64_t>(prompt.size()), options.max_tokens,
            model.weights->config);  // before a word is printed
  std::vector<int32_t> stop = model.weights->config.eos_tokens;
  if (model.RequireTokenizer().eos_token() >= 0) stop.push_back(model.RequireTokenizer().eos_token());
  Decoder decoder(context, model.weights, model.plan);
  StreamingDecoder text(model.RequireTokenizer());
  const auto print = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  print(options.prompt);
  for (int32_t id : prompt) text.Push(id);  // so that the first word of the reply keeps its space
  const GenerationResult result =
      Generate(decoder, prompt, options.max_tokens, options.sampling, options.common.seed, stop, [&](int32_t token) {
        if (token < model.RequireTokenizer().vocab_size()) print(text.Push(token));  // else padding of the vocabulary
        return true;
      });
  print(text.Finish() + "\n");
  if (!options.common.quiet) {
    const auto rate = [](size_t tokens, double seconds) {
      return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    };
    std::fprintf(stderr, "prompt: %zu tokens, %.1f tokens/s; generated: %zu tokens, %.1f tokens/s\n", prompt.size(),
                 rate(prompt.size(), result.prefill_seconds), result.tokens.size(),
                 rate(result.tokens.empty() ? 0 : result.tokens.size() - 1, result.decode_seconds));
  }
  return 0;
}

}  // namespace

Command AddGenerate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  options->common.AddTo(app);
  options->common.AddSeedTo(app, "sampling");
  options->common.AddQuietTo(app);
  app.add_option("--prompt", options->prompt, "text to continue")->required();
  app.add_option("--max-tokens", options->max_tokens, "largest number of tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI::Option* const temperature =
      app.add_option("--temperature", options->sampling.temperature, "temperature of the sampling; 0: greedy")
          ->check(CLI::Range(0.0, 100.0))
          ->capture_default_str();
  app.add_option("--top-p", options->sampling.top_p, "draw from the likeliest tokens with this total probability")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(temperature)
      ->capture_default_str();
  app.add_option("--top-k", options->sampling.top_k, "draw from so many of the likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 22))
      ->needs(temperature)
      ->capture_default_str();
  app.footer(
      "Examples:\n  shiftrt generate --model demo --prompt \"It is a truth\"\n"
      "  shiftrt generate --model out --prompt \"In the beginning\" --temperature 0.8 --top-p 0.95 --seed 3");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
