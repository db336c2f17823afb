// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/cli.h"

#include <zlib.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <sstream>

#include "runtime/median.h"

namespace shiftrt {
namespace {

TEST_F(Cli, HelpComesWithExamplesAndTheVersionIsThere) {
  EXPECT_NE(Call({}).out.find("generate"), std::string::npos);
  EXPECT_EQ(Call({"--version"}).status, 0);
  for (const char* command : {"run", "sweep", "generate", "inspect", "ppl", "eval", "tokenize", "dump"}) {
    const Outcome help = Call({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_NE(help.out.find("Example"), std::string::npos) << command;
  }
}

TEST_F(Cli, WrongUsageIsStatusTwo) {
  EXPECT_EQ(Call({"frobnicate"}).status, 2);
  EXPECT_EQ(Run({"--frobnicate"}).status, 2);
  EXPECT_EQ(Run({"--threads", "many"}).status, 2);
  EXPECT_EQ(Command("generate", {}).status, 2);
  EXPECT_FAILS(Call({"runn"}), 2, "no command \"runn\"; did you mean run?");
  EXPECT_FAILS(Call({"run", "--lamda=1"}), 2, "run has no option --lamda; did you mean --lambda?");
  EXPECT_FAILS(Call({"ppl", "--text", Path("heldout.txt"), "--protocoll", "gptq"}), 2, "did you mean --protocol?");
  EXPECT_FAILS(Call({"run", "demo"}), 2, "run does not expect \"demo\"");
  EXPECT_FAILS(Run({"--prune", "guess:0.5"}), 2, "guess");
  EXPECT_FAILS(Run({"--prune", "reverse:4", "--lra", "4"}), 2, "4 of 4");
  EXPECT_FAILS(Run({"--prune", "reverse:0.1", "--lra", "4"}), 2, "removes none");
  EXPECT_FAILS(Run({"--prune", "reverse:1", "--lra", "33"}), 2, "33");
  EXPECT_FAILS(Run({"--lra", "0"}), 2, "--lra: 0: expected");
  EXPECT_FAILS(Run({"--lambda", "-1"}), 2, "--lambda: \"-1\"");
  EXPECT_FAILS(Run({"--span", "--merge", "full"}), 2, "it leaves nothing to merge");
  EXPECT_FAILS(Run({"--device", "cuda:9"}), 2, "--device cuda:9");
  for (const char* device : {"gpu", "cuda:x", "cuda:", "cuda:0,", "cuda:,0", "cuda:-1", "cuda:0;1", "cuda:99999999999"})
    EXPECT_FAILS(Run({"--device", device}), 2, "expected auto, cpu, cuda, cuda:N, cuda:N,M,... or cuda:all");
  EXPECT_FAILS(Run({"--device", "cuda:1,2,1"}), 2, "GPU 1 is named twice");
  EXPECT_FAILS(Command("run", {"--prune", "reverse:1", "--lra", "4"}), 2, "--calib");
  EXPECT_FAILS(Command("dump", {"--tokens", "1 2", "--out", Path("d")}), 2, "--logits");
}

// An option that would change nothing is refused.
TEST_F(Cli, CommandsTakeTheOptionsTheyHeed) {
  EXPECT_FAILS(Command("generate", {"--prompt", "the", "--top-p", "0.9"}), 2, "--top-p requires --temperature");
  EXPECT_FAILS(Command("generate", {"--prompt", "the", "--top-k", "5"}), 2, "--top-k requires --temperature");
  EXPECT_EQ(Command("generate", {"--prompt", "the", "--top-k", "5", "--temperature", "1", "--max-tokens", "2"}).status,
            0);
  for (const char* option : {"--calib", "--seed", "--memory"})
    EXPECT_FAILS(Command("inspect", {option, "1"}), 2, "requires --prune");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--seed", "1"}), 2, "--seed requires --prune");
  for (const char* option : {"--threads", "--device", "--dtype", "--seed"})
    EXPECT_FAILS(Command("tokenize", {option, "1", "the"}), 2, option);
  EXPECT_FAILS(Command("dump", {"--seed", "1", "--tokens", "1", "--logits", "--out", Path("d")}), 2, "--seed");
  EXPECT_FAILS(Command("ppl", {"--seed", "1", "--text", Path("heldout.txt")}), 2, "--seed");
}

// The library names its fields; whoever reads the message knows options.
TEST_F(Cli, AWrongFieldIsCalledByTheNameOfItsOption) {
  EXPECT_FAILS(Run({"--protocol", "guess"}), 2, "shiftrt: --protocol: unknown perplexity protocol \"guess\"");
  EXPECT_FAILS(Run({"--eval", "guess"}), 2, "shiftrt: --eval: unknown task");
  EXPECT_FAILS(Command("eval", {"--tasks", "guess"}), 2, "shiftrt: --tasks: unknown task");
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", Path("none")}), 2, "shiftrt: --data: ");
}

TEST_F(Cli, WhatCannotBeDoneIsStatusOneAndNamed) {
  EXPECT_FAILS(Call({"ppl", "--model", "no-such-model", "--text", Path("heldout.txt")}), 1, "no-such-model");
  EXPECT_FAILS(Command("ppl", {"--text", Path("none.txt")}), 1, "none.txt");
  WriteText(dir_ / "empty.txt", "");
  EXPECT_FAILS(Command("run", {"--lra", "4", "--calib", Path("empty.txt")}), 1, "empty.txt");
  WriteText(dir_ / "short.txt", "the sea");
  EXPECT_FAILS(Command("run", {"--lra", "4", "--calib", Path("short.txt")}), 1, "short.txt");
  const Outcome too_long = Command("generate", {"--prompt", Words(500)});
  EXPECT_FAILS(too_long, 1, "context of 128");
  EXPECT_EQ(too_long.out, "");
  EXPECT_FAILS(Run({"--prompt", Words(500)}), 1, "context of 128");
  EXPECT_FAILS(Run({"--prompt", ""}), 1, "prompt is empty");
  WriteText(dir_ / "latin1.txt", Words(400) + "caf\xE9 " + Words(400));
  for (const char* option : {"--calib", "--text"}) EXPECT_FAILS(Run({option, Path("latin1.txt")}), 1, "latin1.txt");
  EXPECT_FAILS(Command("ppl", {"--text", Path("latin1.txt")}), 1, "latin1.txt: text is not valid UTF-8 at byte");
  EXPECT_FAILS(Command("generate", {"--prompt", "caf\xE9"}), 2, "not valid UTF-8");
  EXPECT_FAILS(Command("ppl", {"--text", "caf\xE9.txt", "--json", Path("j.json")}), 2,
               "a file can be given another name");
  EXPECT_FAILS(Command("ppl", {"--text", Path("empty.txt")}), 1, "window");
  EXPECT_FAILS(Command("dump", {"--tokens", "1 99999", "--logits", "--out", Path("d")}), 1, "99999");
  EXPECT_FALSE(fs::exists(dir_ / "d"));
}

// Whoever does not ask for a GPU is not told why there is none, but by inspect --devices.
TEST_F(Cli, InspectListsDevices) {
  const Outcome devices = Call({"inspect", "--devices"});
  EXPECT_EQ(devices.status, 0) << devices.err;
  EXPECT_EQ(devices.out.rfind("cpu: ", 0), 0u) << devices.out;
  EXPECT_TRUE(devices.out.find("\nno GPU: ") != std::string::npos ||
              devices.out.find("\ncuda:0: ") != std::string::npos)
      << devices.out;
  EXPECT_EQ(Command("inspect", {}).err, "");
}

TEST_F(Cli, InspectListsFamilies) {
  const Outcome families = Call({"inspect", "--families"});
  EXPECT_EQ(families.status, 0) << families.err;
  for (const char* word : {"LlamaForCausalLM", "0.1.0", "Gemma3ForCausalLM", "0.2.0"})
    EXPECT_NE(families.out.find(word), std::string::npos) << word << " in:\n" << families.out;
}

TEST_F(Cli, InspectShowsWhatASavedModelIsMadeOf) {
  const std::vector<std::string> run = {"--prune", "layers=1,2", "--lra", "8", "--merge", "lowrank", "--save"};
  for (const bool with_weights : {false, true}) {
    std::vector<std::string> arguments = run;
    arguments.push_back(Path("saved"));
    if (with_weights) arguments.push_back("--save-weights");
    ASSERT_EQ(Run(arguments).status, 0);
    const Outcome outcome = Command("inspect", {}, "saved");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    for (const char* words : {"2 of 4 layers", "layers removed: 1, 2\n", "adapter for layers", "1,2"})
      EXPECT_NE(outcome.out.find(words), std::string::npos) << words << " in " << outcome.out;
  }
  EXPECT_EQ(Command("inspect", {}).out.find("removed"), std::string::npos);
}

TEST_F(Cli, BenchTimesTheMainJob) {
  if (Call({"bench", "--help"}).status != 0) GTEST_SKIP() << "built without the bench";
  const Outcome outcome =
      Call({"bench", "job", "--model", Path("model"), "--device", "cpu", "--samples", "32", "--json", Path("j.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("32 samples of 128 tokens, 1 sites"), std::string::npos) << outcome.out;
  const Json times = ReadJson("j.json");
  double parts = 0;
  for (const char* part : {"select", "calibrate", "solve", "factorize"}) {
    EXPECT_GT(times[part], 0.0) << part;
    parts += times[part].get<double>();
  }
  EXPECT_GE(times["total"].get<double>(), parts);
}

TEST_F(Cli, BenchTimesATrainingStep) {
  if (Call({"bench", "--help"}).status != 0) GTEST_SKIP() << "built without the bench";
  const auto train = [&](std::vector<std::string> what) {
    what.insert(what.begin(), {"bench", "train", "--model", Path("model"), "--device", "cpu", "--batch", "2",
                               "--length", "16", "--rounds", "1", "--quiet", "--json", Path("t.json")});
    const Outcome outcome = Call(what);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return ReadJson("t.json");
  };
  const Json config = ReadJson("model/config.json");
  const int64_t layers = config["num_hidden_layers"];
  const double head = config["hidden_size"].get<double>() * config["vocab_size"].get<double>();
  const Json last = train({"--layers", "last:1"}), blocks = train({"--layers", "all"}), all = train({"--all"});
  EXPECT_EQ(last["kept_blocks"], 1);
  EXPECT_EQ(blocks["kept_blocks"], layers);
  EXPECT_EQ(layers * last["parameters"].get<int64_t>(), blocks["parameters"].get<int64_t>());
  EXPECT_LT(last["flops"], blocks["flops"]);
  // The head is trained too: its gradient is a product over all 32 tokens.
  EXPECT_DOUBLE_EQ(all["flops"].get<double>() - blocks["flops"].get<double>(), 32 * 2 * head);
  EXPECT_FAILS(Call({"bench", "train", "--model", Path("model"), "--all", "--layers", "all"}), 2, "excludes");
  EXPECT_FAILS(Call({"bench", "train", "--model", Path("model"), "--length", "16", "--layers", "99"}), 2,
               "runs no block of layer 99");
}

TEST_F(Cli, BenchComparesWithAnEarlierRun) {
  if (Call({"bench", "--help"}).status != 0) GTEST_SKIP() << "built without the bench";
  const std::vector<std::string> bench = {"bench",     "cpu", "--model",   Path("model"), "--prefill",   "32",
                                          "--context", "8",   "--decode",  "2",           "--sequences", "2",
                                          "--rounds",  "3",   "--threads", "1",           "--quiet"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), bench.begin(), bench.end());
    return Call(more);
  };
  ASSERT_EQ(run({"--json", Path("before.json")}).status, 0);
  Json record = ReadJson("before.json");
  const auto write = [&] { WriteFile(Path("before.json"), record.dump()); };
  const auto rounds = [&](const char* figure) -> Json& { return record["rounds"][figure]["values"]; };
  ASSERT_EQ(rounds("prefill_tokens_per_second").size(), 3U);
  EXPECT_EQ(record["prefill_tokens_per_second"], Json(Median(rounds("prefill_tokens_per_second"))));
  // As if the earlier program had been a thousand times slower at one thing and faster at another.
  for (Json& value : rounds("prefill_tokens_per_second")) value = 1e-3 * value.get<double>();
  for (Json& value : rounds("decode_tokens_per_second")) value = 1e3 * value.get<double>();
  record["machine"]["processor"] = "Z80";
  write();
  const Outcome outcome = run({"--compare", Path("before.json"), "--json", Path("now.json")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto line = [&](const std::string& name) {
    const size_t begin = outcome.out.find("  " + name);
    EXPECT_NE(begin, std::string::npos) << name << " in " << outcome.out;
    return begin == std::string::npos ? "" : outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
  };
  EXPECT_NE(line("prefill_tokens_per_second").find("better"), std::string::npos) << outcome.out;
  EXPECT_NE(line("decode_tokens_per_second").find("worse"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("another machine: processor: \"Z80\" before"), std::string::npos) << outcome.out;
  EXPECT_EQ(ReadJson("now.json")["settings"], record["settings"]);

  rounds("decode_tokens_per_second")[1] = 0;
  write();
  EXPECT_FAILS(run({"--compare", Path("before.json")}), 1,
               "the rounds of \"decode_tokens_per_second\" are not numbers above 0");
  record["settings"]["prefill"] = 64;
  write();
  EXPECT_FAILS(run({"--compare", Path("before.json")}), 1, "other settings: prefill: 64 before, 32 now");
  WriteFile(Path("before.json"), "{}");
  EXPECT_FAILS(run({"--compare", Path("before.json")}), 1, "before.json: it has no \"what\"");
  EXPECT_FAILS(Call({"bench", "kernels", "--compare", Path("before.json")}), 2, "--compare belongs to bench cpu");
}

// Random weights do not take the place of a model.
TEST_F(Cli, BenchKeepsWeightsInADirectoryOfTheirOwn) {
  if (Call({"bench", "--help"}).status != 0) GTEST_SKIP() << "built without the bench";
  const std::string before = ReadFile(dir_ / "model/model.safetensors");
  const auto bench = [&](const std::string& save, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"bench", "cpu", "--config", Path("model/config.json"), "--save", Path(save), "--rounds",
                               "1", "--prefill", "8", "--decode", "1", "--context", "8", "--device", "cpu"});
    return Call(more);
  };
  EXPECT_FAILS(bench("model"), 2, "there is a model in this directory (config.json)");
  EXPECT_EQ(ReadFile(dir_ / "model/model.safetensors"), before);
  EXPECT_FAILS(bench("new", {"--model", Path("model")}), 2, "excludes");
  ASSERT_EQ(bench("new").status, 0);
  EXPECT_TRUE(fs::exists(dir_ / "new/model.safetensors"));
  EXPECT_FAILS(bench("new"), 2, "save somewhere else");
  EXPECT_FAILS(Call({"bench", "kernels", "--json", Path("k.json")}), 2, "--benchmark_out=FILE");
  EXPECT_FAILS(Call({"bench", "job", "--model", Path("model"), "--rounds", "3"}), 2, "it runs once");
}

TEST_F(Cli, APerplexityOfDocumentsIsThatOfTheirText) {
  const std::string text = ReadFile(dir_ / "heldout.txt");
  const std::string half = text.substr(0, text.size() / 2), rest = text.substr(text.size() / 2);
  WriteText(dir_ / "d.txt", half + "\n\n" + rest);
  WriteText(dir_ / "d.jsonl", Json({{"text", half}}).dump() + "\n" + Json({{"text", rest}}).dump() + "\n");
  const auto measured = [&](const char* file) {
    EXPECT_EQ(Command("ppl", {"--text", Path(file), "--json", Path("p.json")}).status, 0);
    return ReadJson("p.json");
  };
  const Json plain = measured("d.txt"), documents = measured("d.jsonl");
  EXPECT_EQ(documents["mean_nll"], plain["mean_nll"]);
  EXPECT_EQ(documents["text"], "d.jsonl");
  EXPECT_EQ(documents["tokens"], documents["tokens_of_text"]);
}

TEST_F(Cli, InspectWritesWhatItPrints) {
  ASSERT_EQ(Run({"--prune", "layers=1", "--lra", "3", "--save", Path("out")}).status, 0);
  ASSERT_EQ(Command("inspect", {"--json", Path("i.json")}, "out").status, 0);
  const Json json = ReadJson("i.json");
  EXPECT_EQ(json["layers"], kLayers);
  EXPECT_EQ(json["blocks"], kLayers - 1);
  EXPECT_EQ(json["removed"], Json::array({1}));
  ASSERT_EQ(json["adapters"].size(), size_t{1});
  EXPECT_EQ(json["adapters"][0], Json({{"layers", "1"}, {"rank", 3}, {"parameters", 7 * kHidden}}));
  EXPECT_EQ(json["hidden"], kHidden);
  int64_t sum = 0;
  for (const Json& bytes : json["bytes_by_group"]) sum += bytes.get<int64_t>();
  EXPECT_GT(sum, 0);
  ASSERT_FALSE(json["stored"].empty());
  EXPECT_GT(json["stored"][0]["tensors"], kLayers);
  EXPECT_GT(json["stored"][0]["bytes"], 0);
  EXPECT_FALSE(json["stored"][0]["type"].get<std::string>().empty());
}

// Files of the first save would be taken for parts of the second by other programs.
TEST_F(Cli, ASaveReplacesAnEarlierOne) {
  ASSERT_EQ(Run({"--prune", "layers=1", "--correction", "refit", "--save", Path("out"), "--save-weights"}).status, 0);
  EXPECT_TRUE(fs::exists(dir_ / "out/config.json"));
  ASSERT_EQ(Run({"--prune", "layers=1,2", "--correction", "lra", "--lra", "3", "--save", Path("out")}).status, 0);
  for (const char* file : {"config.json", "model.safetensors", "own.safetensors"})
    EXPECT_FALSE(fs::exists(dir_ / "out" / file)) << file;
  const auto tune = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"finetune", "--threads", "1", "--model", Path("out"), "--calib", Path("calibration.txt"), "--length",
                 "32", "--steps", "1", "--validation", "4", "--save", Path("tuned"), "--quiet"});
    return Call(more).status;
  };
  ASSERT_EQ(tune({}), 0);
  EXPECT_TRUE(fs::exists(dir_ / "tuned/lora/adapter_model.safetensors"));
  ASSERT_EQ(tune({"--method", "partial", "--layers", "all"}), 0);
  EXPECT_FALSE(fs::exists(dir_ / "tuned/lora"));
  EXPECT_TRUE(fs::exists(dir_ / "tuned/own.safetensors"));
  EXPECT_EQ(Command("generate", {"--prompt", "the", "--max-tokens", "2"}, "tuned").status, 0);
}

TEST_F(Cli, AReportDoesNotReplaceAnotherPage) {
  fs::create_directory(dir_ / "site");
  WriteText(dir_ / "site/index.html", "<html>mine</html>");
  EXPECT_FAILS(Run({"--prune", "layers=1", "--report", Path("site")}), 2, "no report of shiftrt");
  EXPECT_EQ(ReadFile(dir_ / "site/index.html"), "<html>mine</html>");
  ASSERT_EQ(Run({"--prune", "layers=1", "--report", Path("page")}).status, 0);
  ASSERT_EQ(Run({"--prune", "layers=2", "--report", Path("page")}).status, 0);
}

TEST_F(Cli, TextsMayBeCompressed) {
  const auto perplexity = [&](const char* text) {
    EXPECT_EQ(Command("ppl", {"--text", Path(text), "--json", Path("p.json")}).status, 0);
    return ReadJson("p.json")["mean_nll"].get<double>();
  };
  const gzFile out = gzopen(Path("heldout.txt.gz").c_str(), "wb");
  ASSERT_GT(gzputs(out, ReadFile(dir_ / "heldout.txt").c_str()), 0);
  gzclose(out);
  EXPECT_EQ(perplexity("heldout.txt.gz"), perplexity("heldout.txt"));
  fs::resize_file(dir_ / "heldout.txt.gz", 100);
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt.gz")}), 1, "heldout.txt.gz: the gzip data is truncated");
}

// The tokenizer has 529 tokens. A text whose ids all have rows is run.
TEST_F(Cli, ATextIsRefusedOnlyWhereItsTokensHaveNoRow) {
  WriteModel("other", {{"vocab_size", 300}});
  EXPECT_EQ(Command("inspect", {}, "other").status, 0);
  EXPECT_EQ(Command("generate", {"--prompt", "~", "--max-tokens", "1"}, "other").status, 0);
  EXPECT_FAILS(Command("generate", {"--prompt", "within"}, "other"), 1,
               "but the model's embedding has 300 rows for the 529 tokens of its tokenizer");
}

TEST_F(Cli, ATokenizerThatCannotBeReadIsNeededOnlyForText) {
  WriteModel("broken");
  WriteText(dir_ / "broken/tokenizer.json", R"({"model": {"type": "WordLevel"}})");
  const Outcome inspected = Command("inspect", {}, "broken");
  EXPECT_EQ(inspected.status, 0);
  EXPECT_NE(inspected.err.find("broken/tokenizer.json: model"), std::string::npos) << inspected.err;
  EXPECT_EQ(Command("dump", {"--tokens", "1 2", "--logits", "--out", Path("logits.st")}, "broken").status, 0);
  ASSERT_EQ(Command("export", {"--prune", "layers=1", "--format", "hf", "--save", Path("short")}, "broken").status, 0);
  EXPECT_EQ(ReadFile(dir_ / "short/tokenizer.json"), ReadFile(dir_ / "broken/tokenizer.json"));
  EXPECT_EQ(Command("inspect", {}, "short").status, 0);
  for (const auto& [command, option] : {std::pair("generate", "--prompt"), std::pair("ppl", "--text")})
    EXPECT_FAILS(Command(command, {option, Path("heldout.txt")}, "broken"), 1, "broken/tokenizer.json: model");
}

TEST_F(Cli, DumpHoldsEveryStateAndTheUpdatesAddUp) {
  ASSERT_EQ(Command("dump", {"--tokens", "5, 6 7", "--logits", "--hidden", "--delta", "--out", Path("d")}).status, 0);
  const SafetensorsFile file(dir_ / "d");
  EXPECT_EQ(file.tensors().size(), size_t{1 + kLayers + 1 + kLayers});
  EXPECT_EQ(file.tensors().at("logits").shape, (std::vector<int64_t>{3, kVocab}));
  const auto values = [&](const std::string& name) {
    const TensorView& tensor = file.tensors().at(name);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, kHidden})) << name;
    std::vector<float> out(tensor.elements());
    std::memcpy(out.data(), tensor.data, tensor.bytes());
    return out;
  };
  for (int64_t l = 0; l < kLayers; ++l) {
    const auto before = values("hidden." + std::to_string(l)), after = values("hidden." + std::to_string(l + 1));
    const auto delta = values("delta." + std::to_string(l));
    for (size_t i = 0; i < delta.size(); ++i) EXPECT_NEAR(before[i] + delta[i], after[i], 1e-5) << l << " " << i;
  }
}

// As long as no file's name may be.
TEST_F(Cli, DumpTakesManyIds) {
  std::string ids;
  for (int i = 0; i < 100; ++i) ids += std::to_string(100 + i) + " ";
  const Outcome outcome = Command("dump", {"--tokens", ids, "--logits", "--out", Path("d")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(SafetensorsFile(dir_ / "d").tensors().at("logits").shape, (std::vector<int64_t>{100, kVocab}));
}

TEST_F(Cli, AModelWithoutATokenizerWorksWhereNoTextIsNeeded) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(dir_ / "model" / file);
  EXPECT_EQ(Command("dump", {"--tokens", "1 2 3", "--logits", "--out", Path("d")}).status, 0);
  EXPECT_EQ(Command("inspect", {"--prune", "magnitude-l1:1"}).status, 0);
  const std::string reason = "model: text cannot be read or written without a tokenizer (tokenizer.json, vocab.json";
  EXPECT_FAILS(Command("generate", {"--prompt", "the sea"}), 1, reason);
  EXPECT_FAILS(Run({"--prune", "reverse:1"}), 1, reason);
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt")}), 1, reason);
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData()}), 1, reason);
}

TEST_F(Cli, TextTokensBoundTheTextOfThePerplexity) {
  const auto predicted = [&](const char* limit) {
    const Outcome outcome =
        Command("ppl", {"--text", Path("heldout.txt"), "--text-tokens", limit, "--json", Path("p.json")});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("first") != std::string::npos, limit != std::string("0")) << outcome.out;
    return ReadJson("p.json")["predicted"].get<int64_t>();
  };
  EXPECT_EQ(predicted("300"), 2 * (kContext - 1));
  EXPECT_EQ(predicted("5"), kContext - 1);  // one window at least
  EXPECT_GT(predicted("0"), 3 * (kContext - 1));
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt"), "--protocol", "harness", "--text-tokens", "300"}), 2,
               "gptq and seq128");
  // Every protocol takes the name of a text. This one is found, and the tokenizer has no token to begin it with.
  ::setenv("SHIFTRT_DATA", dir_.c_str(), 1);
  EXPECT_EQ(Command("ppl", {"--text", "heldout"}).status, 0);
  EXPECT_FAILS(Command("ppl", {"--text", "heldout", "--protocol", "harness"}), 1, "a document needs a first token");
  ::unsetenv("SHIFTRT_DATA");

  ASSERT_EQ(Command("ppl", {"--text", Path("heldout.txt"), "--text-tokens", "300", "--json", Path("p.json")}).status,
            0);
  const Outcome run = Run({"--prune", "reverse:1", "--text-tokens", "300", "--json", Path("r.json")});
  EXPECT_NE(run.out.find("on heldout.txt, first 300 of "), std::string::npos) << run.out;
  EXPECT_EQ(ReadJson("r.json")["variants"][0]["perplexity"], ReadJson("p.json")["perplexity"]);
}

TEST_F(Cli, PerplexityIsTheOneTheLogitsGive) {
  std::istringstream ids(Command("tokenize", {"--ids", "--text", Path("heldout.txt")}).out);
  std::vector<int32_t> tokens(kContext);
  std::string first_window;
  for (int32_t& id : tokens) {
    ASSERT_TRUE(ids >> id);
    first_window += std::to_string(id) + " ";
  }
  WriteText(dir_ / "ids", first_window);
  const std::string text = Command("tokenize", {"--decode", "--text", Path("ids")}).out;
  WriteText(dir_ / "window.txt", text.substr(0, text.size() - 1));  // without the line's end
  ASSERT_EQ(Command("ppl", {"--text", Path("window.txt"), "--protocol", "seq128", "--json", Path("p.json")}).status, 0);
  ASSERT_EQ(Command("dump", {"--tokens", Path("ids"), "--logits", "--out", Path("d")}).status, 0);

  const SafetensorsFile file(dir_ / "d");
  const auto* logits = static_cast<const float*>(file.tensors().at("logits").data);
  double nll = 0;
  for (int64_t t = 0; t + 1 < kContext; ++t) {
    double sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(static_cast<double>(logits[t * kVocab + v]));
    nll += std::log(sum) - logits[t * kVocab + tokens[t + 1]];
  }
  const Json json = ReadJson("p.json");
  EXPECT_EQ(json["predicted"], kContext - 1);
  EXPECT_NEAR(json["mean_nll"].get<double>(), nll / (kContext - 1), 1e-5);
}

TEST_F(Cli, TokenizeGoesBothWays) {
  const std::string text = "the sea was calm \xE2\x82\xAC";
  std::string ids = Command("tokenize", {"--ids", text}).out;
  // This tokenizer puts a space before the first word; its decoder, like the reference's, keeps it.
  EXPECT_EQ(Command("tokenize", {"--decode", ids}).out, " " + text + "\n");
  for (const char* not_ids : {"1 two", "1x", "two", "99999999999", "1;2"})
    EXPECT_EQ(Command("tokenize", {"--decode", not_ids}).status, 2) << not_ids;
  EXPECT_EQ(Command("tokenize", {"--decode", "999999"}).status, 1);
  EXPECT_EQ(Command("tokenize", {"\xFF"}).status, 2);
}

TEST_F(Cli, TokenizeTakesManyTexts) {
  WriteText(dir_ / "texts", std::string("the sea\0\0of\nhome\0", 17));
  const auto ids = [&](const char* text) { return Command("tokenize", {"--ids", text}).out; };
  EXPECT_EQ(Command("tokenize", {"--ids", "--null", "--text", Path("texts")}).out,
            ids("the sea") + "\n" + ids("of\nhome"));
  EXPECT_EQ(Command("tokenize", {"--ids", "--null", "text"}).status, 2);
  EXPECT_FAILS(Command("tokenize", {"--ids"}), 2, "give a text");
}

TEST_F(Cli, TokenizeNeedsNoMoreThanATokenizer) {
  const fs::path directory = TestDirectory() / "goldens/tokenizers/gpt2-json";
  EXPECT_EQ(Call({"tokenize", "--model", directory, "--ids", "the sea"}).out,
            Command("tokenize", {"--ids", "the sea"}).out);
}

TEST_F(Cli, ATextMayBeTheNameOfACommand) {
  const Outcome outcome = Command("tokenize", {"--ids", "run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Command("tokenize", {"--decode", outcome.out}).out, " run\n");
}

TEST_F(Cli, CtrlCStopsWithStatus130) {
  WriteModel("long", {{"max_position_embeddings", 1 << 17}});
  const pid_t child =
      Start({"generate", "--model", Path("long"), "--prompt", "the", "--max-tokens", "100000", "--threads", "1"},
            dir_ / "stdout", dir_ / "stderr");
  while (!fs::exists(dir_ / "stdout") || fs::file_size(dir_ / "stdout") == 0) ::usleep(1000);
  ::kill(child, SIGINT);
  EXPECT_EQ(Wait(child), 130);
}

}  // namespace
}  // namespace shiftrt
