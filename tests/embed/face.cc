// SPDX-License-Identifier: Apache-2.0
// The public interface as an embedding program uses it, on the demo model: face MODEL DIRECTORY. Prints what failed.
#include <shiftrt/shiftrt.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

int failures = 0;

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}
#define EXPECT(condition) Expect(condition, #condition)

template <typename Error, typename Call>
std::string Refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const char* const kPrompt = "It is a truth universally acknowledged, that";

shiftrt::Recipe SmallRecipe(const shiftrt::LanguageModel& model) {
  shiftrt::Recipe recipe;
  recipe.prune = {.criterion = "bi", .count = 4};
  recipe.rank = shiftrt::RankSpec::Fixed(16);
  recipe.text = {(model.Directory() / "calibration.txt").string(), 16, 64};
  return recipe;
}

std::string Speak(const shiftrt::LanguageModel& model, int threads) {
  shiftrt::ModelRunner runner(model, {.threads = threads});
  return runner.Generate(kPrompt, {.max_tokens = 16}).text;
}

// A conversation is encoded as the template of a copy of the model says.
void Chats(const shiftrt::LanguageModel& model, const std::filesystem::path& directory) {
  const std::vector<shiftrt::ChatMessage> messages = {{"user", "hi"}, {"assistant", "Well?"}, {"user", "sing"}};
  EXPECT(Refusal<shiftrt::Error>([&] { EncodeChat(model, messages); }).find("chat template") != std::string::npos);
  std::filesystem::remove_all(directory);
  std::filesystem::copy(model.Directory(), directory);
  std::ofstream(directory / "chat_template.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:";
  const shiftrt::LanguageModel chat = shiftrt::LanguageModel::Open(directory.string());
  EXPECT(chat.Decode(EncodeChat(chat, messages)) == "user: hi assistant: Well? user: sing assistant:");
  EXPECT(chat.EncodeMessage("hi") == EncodeChat(chat, std::vector<shiftrt::ChatMessage>{{"user", "hi"}}));

  // A reply that fails leaves the conversation as it was.
  shiftrt::ModelRunner runner(chat);
  shiftrt::Conversation once(runner), again(runner);
  int tokens = 0;
  EXPECT(Refusal<shiftrt::Error>([&] {
           again.Reply("hi", {.max_tokens = 8, .stop_at_end = false}, [&](int32_t) -> bool {
             if (++tokens == 3) throw shiftrt::Error("stopped");
             return true;
           });
         }) == "stopped");
  EXPECT(Refusal<shiftrt::UsageError>([&] { again.Reply("hi", {.max_tokens = 0}); }).find("max_tokens") == 0);
  for (const char* message : {"sing", "dance"}) {
    const shiftrt::Generation expected = once.Reply(message, {.max_tokens = 8});
    const shiftrt::Generation found = again.Reply(message, {.max_tokens = 8});
    EXPECT(found.tokens == expected.tokens && found.text == expected.text);
  }
}

// The tokenizer alone does what that of the model does.
void Tokenizes(const shiftrt::LanguageModel& model) {
  const shiftrt::ModelTokenizer tokenizer = shiftrt::ModelTokenizer::Open(model.Directory().string());
  const std::vector<int32_t> tokens = tokenizer.Encode(kPrompt, /*bos=*/true);
  EXPECT(tokens == model.Encode(kPrompt) &&
         tokenizer.Decode(tokenizer.Encode(kPrompt)).find(kPrompt) != std::string::npos);
  EXPECT(!tokenizer.Piece(tokens.back()).empty());
  EXPECT(!Refusal<shiftrt::Error>([&] { tokenizer.Piece(static_cast<int32_t>(model.Shape().vocabulary)); }).empty());
  EXPECT(!Refusal<shiftrt::Error>([&] { tokenizer.RenderChat("{}"); }).empty());
}

// Scores are those by which a repair chooses, and descriptions name what runs.
void Describes(const shiftrt::LanguageModel& model, const shiftrt::RepairResult& repair) {
  const shiftrt::ModelDescription original = Describe(model), corrected = Describe(repair.corrected);
  EXPECT(original.adapters.empty() && original.own.empty() && !original.lora && !original.own_head);
  EXPECT(original.heads % original.kv_heads == 0 && original.bytes.attention > corrected.bytes.attention);
  EXPECT(original.removed.empty() && corrected.removed == repair.corrected.RemovedLayers());
  EXPECT(std::ssize(corrected.adapters) == repair.corrected.Adapters() && corrected.adapters.front().rank == 16);
  const std::vector<shiftrt::BlockPart> half = {{1, shiftrt::Halves::kMlp}};
  const shiftrt::ModelDescription halved = Describe(model.Without(half));
  EXPECT(halved.half_blocks.size() == 1 && halved.half_blocks.front().halves == shiftrt::Halves::kAttention);
  EXPECT(halved.bytes.mlp < original.bytes.mlp && halved.bytes.attention == original.bytes.attention);

  const shiftrt::Recipe recipe = SmallRecipe(model);
  const std::vector<shiftrt::PruneSpec> specs = {recipe.prune, {.criterion = "magnitude-l1", .count = 1}};
  const std::vector<shiftrt::Selection> scored = ScoreLayers(model, specs, recipe.text, recipe.seed);
  EXPECT(scored.size() == 2 && scored[0].scores == repair.report.selection.scores && scored[1].removed.size() == 1);
  EXPECT(shiftrt::ReadsText(specs) && !shiftrt::ReadsText(std::span(specs).last(1)));
  EXPECT(!Refusal<shiftrt::UsageError>([&] { ScoreLayers(model, specs); }).empty());
  EXPECT(Refusal<shiftrt::UsageError>([&] {
           ScoreLayers(repair.pruned, std::span(specs).last(1));
         }).find("already pruned") != std::string::npos);
  EXPECT(shiftrt::SupportedFamilies().size() > 10);
}

// A sweep that stops after two of its rows continues from its journal and gives the rows of a whole one.
void Sweeps(const shiftrt::LanguageModel& model, const std::filesystem::path& journal) {
  shiftrt::SweepAxes axes;
  axes.prunes = shiftrt::ParsePruneList("bi:2,layers=1", "");
  axes.ranks = {shiftrt::RankSpec::Fixed(4), shiftrt::RankSpec::Fixed(8)};
  axes.samples = {8};
  shiftrt::SweepSettings settings;
  settings.calibration.tokens = 32;
  settings.heldout = ReadHeldOutText(model, (model.Directory() / "heldout.txt").string(), 256);
  settings.protocol = "seq128";
  const shiftrt::SweepResult whole = Sweep(model, axes, settings);
  EXPECT(whole.rows.size() == 4 && Summarize(whole.rows).size() == 4);
  EXPECT(whole.rows[0].removed.size() == 2 && whole.rows[3].recipe.rank.rank == 8);

  std::filesystem::remove(journal);
  settings.journal = journal;
  int rows = 0;
  settings.done = [&](const shiftrt::SweepRow&) {
    if (++rows == 2) throw shiftrt::Error("stopped");
  };
  EXPECT(Refusal<shiftrt::Error>([&] { Sweep(model, axes, settings); }) == "stopped");
  std::string told;
  settings.tell = [&](const std::string& message) { told += message; };
  settings.done = {};
  const shiftrt::SweepResult continued = Sweep(model, axes, settings);
  EXPECT(told.find("2 cells come from") == 0 && continued.rows.size() == 4);
  for (size_t i = 0; i < continued.rows.size(); ++i) {
    const shiftrt::SweepRow &a = whole.rows[i], &b = continued.rows[i];
    EXPECT(a.removed == b.removed && a.recipe.rank.rank == b.recipe.rank.rank && a.r2_fit == b.r2_fit);
    EXPECT(a.original.perplexity == b.original.perplexity && a.pruned.perplexity == b.pruned.perplexity);
    EXPECT(a.corrected.perplexity == b.corrected.perplexity);
  }

  const auto refused = [&](const shiftrt::SweepAxes& changed, const shiftrt::SweepSettings& with) {
    const std::string message = Refusal<shiftrt::UsageError>([&] { Sweep(model, changed, with); });
    return message.substr(0, message.find(':'));
  };
  shiftrt::SweepAxes wrong = axes;
  wrong.corrections = {"guess"};
  EXPECT(refused(wrong, settings) == "correction");
  wrong = axes;
  wrong.seeds = {};
  EXPECT(refused(wrong, settings) == "seeds");
  wrong.seeds = {3, 3};
  EXPECT(refused(wrong, settings) == "seeds");
  wrong = axes;
  wrong.prunes.push_back(wrong.prunes.front());
  EXPECT(refused(wrong, settings) == "prunes");

  // The cells of a text that is given by name do not count for another text of this name.
  const std::filesystem::path texts = journal.string() + ".texts";
  std::filesystem::create_directories(texts);
  const auto write = [&](size_t bytes) {
    std::string some(bytes, ' ');
    std::ifstream(model.Directory() / "calibration.txt").read(some.data(), static_cast<std::streamsize>(bytes));
    std::ofstream(texts / "sweeptext.txt") << some;
  };
  setenv("SHIFTRT_DATA", texts.c_str(), 1);
  std::filesystem::remove(journal);
  axes.prunes = shiftrt::ParsePruneList("layers=1", "");
  axes.ranks = {shiftrt::RankSpec::Fixed(4)};
  settings.calibration.source = "sweeptext";
  write(4000);
  Sweep(model, axes, settings);
  told.clear();
  Sweep(model, axes, settings);
  EXPECT(told.find("1 cells come from") == 0);
  write(5000);
  told.clear();
  Sweep(model, axes, settings);
  EXPECT(told.empty());

  settings.protocol = "guess";
  EXPECT(refused(axes, settings) == "protocol");
}

void Errors(const shiftrt::LanguageModel& model) {
  EXPECT(Refusal<shiftrt::Error>([] { shiftrt::LanguageModel::Open("/nowhere"); }).find("/nowhere") !=
         std::string::npos);
  shiftrt::Recipe recipe = SmallRecipe(model);
  EXPECT(Refusal<shiftrt::UsageError>([&] { shiftrt::Set("rank", "nonsense", recipe); }).find("nonsense") !=
         std::string::npos);
  EXPECT(Refusal<shiftrt::UsageError>([&] { shiftrt::Set("colour", "red", recipe); }).find("correction") !=
         std::string::npos);
  recipe.rank = shiftrt::RankSpec::Fixed(model.Shape().hidden + 1);
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::Repair(model, recipe); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([] { shiftrt::FindRecipe("cheap"); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([] { shiftrt::LookUp({.name = "no such model"}); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::ModelRunner(model, {.threads = -1}); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::ModelRunner(model, {.gpus = {12345}}); }).empty());
  shiftrt::ModelRunner runner(model);
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.NewSequence(model.Shape().max_positions + 1); }).empty());
  const std::vector<std::vector<int32_t>> short_one = {{1}};
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.LogProbabilities(short_one); }).empty());
  const std::vector<std::vector<int32_t>> unknown = {{1, static_cast<int32_t>(model.Shape().vocabulary)}};
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.LogProbabilities(unknown); }).empty());
}

// The stream before a block, and the block's update, add up to the stream after it.
void Updates(shiftrt::ModelRunner& runner, const std::vector<int32_t>& tokens) {
  std::vector<std::vector<float>> streams;
  runner.HiddenStates(
      tokens, [&](int64_t, std::span<const float> stream) { streams.emplace_back(stream.begin(), stream.end()); });
  size_t blocks = 0;
  runner.Updates(tokens, [&](int64_t, std::span<const float> update) {
    const std::vector<float>&before = streams[blocks], &after = streams[++blocks];
    double worst = 0;
    for (size_t i = 0; i < update.size(); ++i) worst = std::fmax(worst, std::abs(before[i] + update[i] - after[i]));
    EXPECT(update.size() == before.size() && worst < 1e-4);
  });
  EXPECT(blocks + 1 == streams.size());
}

// The logits of all positions have the log-probabilities of the sequence, and the streams have the right shape.
void AllPositions(const shiftrt::LanguageModel& model, shiftrt::ModelRunner& runner, const std::vector<int32_t>& tokens,
                  const std::vector<float>& expected) {
  const int64_t vocabulary = model.Shape().vocabulary;
  std::vector<float> logits(tokens.size() * vocabulary, std::nanf(""));
  runner.Logits(tokens, logits);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const float* const row = logits.data() + i * vocabulary;
    double sum = 0;
    for (int64_t token = 0; token < vocabulary; ++token) sum += std::exp(static_cast<double>(row[token]));
    EXPECT(std::abs(row[tokens[i + 1]] - std::log(sum) - expected[i]) < 1e-3);
  }
  logits.pop_back();
  EXPECT(!Refusal<shiftrt::UsageError>([&] { runner.Logits(tokens, logits); }).empty());
  std::vector<int64_t> layers;
  runner.HiddenStates(tokens, [&](int64_t layer, std::span<const float> stream) {
    layers.push_back(layer);
    EXPECT(stream.size() == tokens.size() * model.Shape().hidden && std::isfinite(stream.back()));
  });
  EXPECT(static_cast<int64_t>(layers.size()) == model.Blocks() + 1 && layers.back() == model.Shape().layers);
  Updates(runner, tokens);
}

// A sequence continued token by token has the probabilities that the whole one has.
void LogitsAndLogProbabilities(const shiftrt::LanguageModel& model) {
  shiftrt::ModelRunner runner(model);
  const std::vector<std::vector<int32_t>> sequences = {model.Encode(kPrompt), model.Encode("the sea and the land")};
  const std::vector<std::vector<float>> expected = runner.LogProbabilities(sequences);
  EXPECT(expected.size() == 2);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<int32_t>& tokens = sequences[s];
    EXPECT(expected[s].size() == tokens.size() - 1);
    shiftrt::SequenceCache sequence = runner.NewSequence(static_cast<int64_t>(tokens.size()));
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::vector<float> logits = runner.NextLogits({&tokens[i], 1}, sequence);
      EXPECT(static_cast<int64_t>(logits.size()) == model.Shape().vocabulary);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      EXPECT(std::abs(logits[tokens[i + 1]] - std::log(sum) - expected[s][i]) < 1e-3);
    }
    EXPECT(sequence.Size() == static_cast<int64_t>(tokens.size()) - 1);
    AllPositions(model, runner, tokens, expected[s]);
  }
}

// Scored sequences have the log-probabilities that the runner gives, and are told to be greedy where they are.
void Scores(const shiftrt::LanguageModel& model) {
  shiftrt::ModelRunner runner(model);
  const std::vector<int32_t> prompt = model.Encode(kPrompt);
  const shiftrt::Generation likeliest = runner.Generate(prompt, {.max_tokens = 4});
  EXPECT(likeliest.tokens == runner.Generate(kPrompt, {.max_tokens = 4}).tokens);
  EXPECT(!Refusal<shiftrt::Error>([&] { runner.Generate(std::vector<int32_t>()); }).empty());
  const std::vector<std::vector<int32_t>> prompts = {prompt, model.Encode("the sea"), prompt};
  std::vector<shiftrt::Generation> replies(3);
  const shiftrt::GenerationTotals totals = runner.GenerateMany(
      prompts, {.max_tokens = 4}, 2, [&](size_t i, const shiftrt::Generation& reply) { replies[i] = reply; });
  EXPECT(replies[0].tokens == likeliest.tokens && replies[2].text == likeliest.text);
  EXPECT(totals.tokens == static_cast<int64_t>(2 * likeliest.tokens.size() + replies[1].tokens.size()));
  const auto ignored = [](size_t, const shiftrt::Generation&) {};
  EXPECT(!Refusal<shiftrt::UsageError>([&] { runner.GenerateMany(prompts, {}, 0, ignored); }).empty());
  EXPECT(!Refusal<shiftrt::UsageError>([&] {
            runner.GenerateMany(prompts, {.on_text = [](std::string_view) {}}, 2, ignored);
          }).empty());
  const double nan = std::nan("");
  for (const auto& [field, wrong] :
       std::vector<std::pair<std::string, shiftrt::GenerationSettings>>{{"max_tokens", {.max_tokens = 0}},
                                                                        {"temperature", {.temperature = nan}},
                                                                        {"temperature", {.temperature = -1}},
                                                                        {"temperature", {.temperature = HUGE_VAL}},
                                                                        {"top_p", {.top_p = nan}},
                                                                        {"top_p", {.top_p = 1.5}},
                                                                        {"top_k", {.top_k = -1}}}) {
    EXPECT(Refusal<shiftrt::UsageError>([&, &wrong = wrong] { runner.Generate(prompt, wrong); }).find(field) == 0);
    EXPECT(Refusal<shiftrt::UsageError>([&, &wrong = wrong] {
             runner.GenerateMany(prompts, wrong, 2, ignored);
           }).find(field) == 0);
  }
  std::vector<shiftrt::ScoredSequence> sequences(2, {prompt, 4});
  sequences[0].tokens.insert(sequences[0].tokens.end(), likeliest.tokens.begin(), likeliest.tokens.end());
  const std::vector<shiftrt::SequenceScore> scores = shiftrt::ScoreSequences(model, sequences);
  EXPECT(scores.size() == 2 && scores[0].greedy);
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<float> expected = runner.LogProbabilities({&sequences[i].tokens, 1})[0];
    double sum = 0;
    for (size_t token = expected.size() - 4; token < expected.size(); ++token) sum += expected[token];
    EXPECT(std::abs(scores[i].log_likelihood - sum) < 1e-3);
  }
  const std::vector<shiftrt::Continuation> texts = {{kPrompt, likeliest.text}, {"", "the sea"}};
  const std::vector<shiftrt::ScoredSequence> encoded = shiftrt::EncodeContinuations(model, texts);
  EXPECT(encoded.size() == 2 && encoded[0].tokens == model.Encode(kPrompt + likeliest.text));
  EXPECT(encoded[1].scored + 1 == static_cast<int64_t>(encoded[1].tokens.size()));
  std::string document;
  while (static_cast<int64_t>(model.Encode(document).size()) <= model.Shape().max_positions) document += kPrompt;
  const std::vector<shiftrt::ScoredSequence> windows = shiftrt::EncodeDocument(model, document);
  EXPECT(windows.size() == 2 && shiftrt::ScoreSequences(model, windows)[1].log_likelihood < 0);
  int64_t scored = 0;
  for (const shiftrt::ScoredSequence& window : windows) scored += window.scored;
  EXPECT(scored == static_cast<int64_t>(model.Encode(document).size()));
  EXPECT(!Refusal<shiftrt::Error>([&] {
            shiftrt::EncodeContinuations(model, std::vector<shiftrt::Continuation>{{kPrompt, ""}});
          }).empty());
  sequences[0].scored = static_cast<int64_t>(sequences[0].tokens.size());
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::ScoreSequences(model, sequences); }).empty());
  sequences[0] = {{prompt[0], static_cast<int32_t>(model.Shape().vocabulary)}, 1};
  EXPECT(!Refusal<shiftrt::Error>([&] { shiftrt::ScoreSequences(model, sequences); }).empty());
}

// Formatters write the words that parsers read.
void WordsOfRecipes() {
  for (const char* text : {"bi:0.25", "streamline:8", "correctable:0.25,rank=16,unit=half,keep=first:2,keep=last:1",
                           "layers=3.attn,5,8", "bi:params=6300"}) {
    EXPECT(shiftrt::Format(shiftrt::ParsePrune(text)) == text);
  }
  // A field that is changed after parsing changes the words: they name the fit that a program keeps.
  shiftrt::PruneSpec changed = shiftrt::ParsePrune("bi:0.25");
  changed.ratio = 0.5;
  EXPECT(shiftrt::Format(changed) == "bi:0.5");
  changed = shiftrt::FindRecipe("paper").prune;
  changed.criterion = "angular";
  EXPECT(shiftrt::Format(changed).starts_with("angular:"));
  for (const char* text : {"64", "full", "energy:0.9", "budget:4000"})
    EXPECT(shiftrt::Format(shiftrt::ParseRank(text)) == text);
  EXPECT(shiftrt::Format(shiftrt::ParseTokenWeights("first:0,norm")) == "norm,first:0");
  EXPECT(shiftrt::Name(shiftrt::ParseHeal("down")) == std::string("down"));
  const shiftrt::Recipe best = shiftrt::FindRecipe("best");
  EXPECT(best.correction == "joint" && best.rank.kind == shiftrt::RankSpec::Kind::kFull);
  EXPECT(best.heal == shiftrt::Heal::kAll && best.prune.keep_first == 1);
  EXPECT(!shiftrt::CriteriaNames().empty() && !shiftrt::CorrectionNames().empty());
}

struct CountedProgress : shiftrt::Progress {
  void Begin(std::string_view, int64_t) override { ++begun; }
  void Advance(int64_t count) override { done += count; }
  void End() override {}
  int begun = 0;
  int64_t done = 0;
};

// Two threads: one prunes and repairs, the other generates. Each has the result that it has alone.
void TwoThreads(const shiftrt::LanguageModel& model, const shiftrt::RepairResult& alone, const std::string& spoken) {
  std::vector<double> scores;
  std::string repaired, original;
  std::thread repairing([&] {
    const shiftrt::RepairResult again = shiftrt::Repair(model, SmallRecipe(model));
    scores = again.report.selection.scores;
    repaired = Speak(again.corrected, 2);
  });
  std::thread speaking([&] {
    for (int round = 0; round < 3; ++round) original = Speak(model, 2);
  });
  repairing.join();
  speaking.join();
  EXPECT(scores == alone.report.selection.scores);
  EXPECT(original == spoken);
  EXPECT(repaired == Speak(alone.corrected, 2));
}

// Documents as a task that needs no data set of somebody else's.
void Suites(const shiftrt::RepairResult& repair, const std::filesystem::path& text) {
  const std::vector<shiftrt::LanguageModel> models = {repair.pruned, repair.corrected};
  const shiftrt::SuiteSettings settings = {.tasks = "wikitext", .data = {"wikitext=" + text.string()}};
  const std::vector<shiftrt::SuiteResult> results = shiftrt::Evaluate(models, settings);
  EXPECT(results.size() == 1 && results[0].scores.size() == 2 && results[0].items == 1);
  EXPECT(results[0].scores[0][0].value > results[0].scores[1][0].value);  // perplexity per word
  // The same model opened again has weights of its own.
  const shiftrt::LanguageModel again = shiftrt::LanguageModel::Open(repair.pruned.Directory().string());
  const std::vector<shiftrt::LanguageModel> apart = {repair.pruned, again};
  const std::vector<shiftrt::ModelVariant> variants = {{"pruned", "pruned", repair.pruned}, {"again", "again", again}};
  const auto refused = [](const auto& call) {
    return Refusal<shiftrt::UsageError>(call).find("do not share their weights") != std::string::npos;
  };
  EXPECT(refused([&] { shiftrt::Evaluate(apart, settings); }));
  EXPECT(refused([&] { shiftrt::MeasureDrift(apart, {}); }));
  EXPECT(refused([&] { shiftrt::Compare(variants, {}); }));
}

// Two steps of LoRA, saved as factors and merged, and exported.
void Train(const shiftrt::LanguageModel& model, const std::filesystem::path& text, const std::string& directory) {
  shiftrt::FinetuneSettings settings;
  settings.text = text.string();
  settings.length = 64;
  settings.validation = 2;
  settings.steps = 2;
  settings.batch = 2;
  int seen = 0;
  const shiftrt::FinetunedModel tuned = shiftrt::Finetune(
      model, settings, {}, {.step = [&](const shiftrt::TrainingHistory&, int64_t steps) { seen += steps == 2; }});
  EXPECT(seen > 0 && tuned.history.steps() == 2 && tuned.parameters > 0);
  EXPECT(tuned.model.MadeBy()->finetune->correction_before == "joint");
  EXPECT(tuned.model.MadeBy()->repair->sites.size() == model.MadeBy()->repair->sites.size());
  const std::string spoken = Speak(tuned.model, 2);
  for (const bool merged : {false, true}) {
    const std::string saved = directory + (merged ? ".merged" : ".tuned");
    tuned.model.Save(saved, /*with_weights=*/false, merged);
    EXPECT(std::filesystem::exists(saved + "/lora") == !merged);
    EXPECT(Speak(shiftrt::LanguageModel::Open(saved), 2) == spoken);
  }
  settings.layers = "last:99999";
  settings.method = shiftrt::Method::kPartial;
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::Finetune(model, settings); }).empty());

  shiftrt::CheckExport(model, {.format = "gguf", .q8_0 = true});
  EXPECT(!Refusal<shiftrt::UsageError>([&] { shiftrt::CheckExport(model, {.format = "hf", .q8_0 = true}); }).empty());
  shiftrt::Export(tuned.model, directory + ".exported", {.format = "hf-lra"});
  EXPECT(Speak(shiftrt::LanguageModel::Open(directory + ".exported"), 2) == spoken);
  EXPECT(!Refusal<shiftrt::UsageError>([&] {
            shiftrt::Export(tuned.model, directory + ".none", {.format = "hf"});
          }).empty());
}

// Settings of a training that are out of their range, with the fields that the errors name.
void RefusesTrainings(const shiftrt::LanguageModel& model) {
  using Settings = shiftrt::FinetuneSettings;
  const double nan = std::nan("");
  for (const auto& [field, wrong] :
       std::vector<std::pair<std::string, Settings>>{{"rate", {.rate = -1}},
                                                     {"rate", {.rate = nan}},
                                                     {"rate", {.rate = HUGE_VAL}},
                                                     {"samples", {.samples = -1}},
                                                     {"validation", {.validation = -1}},
                                                     {"clip", {.clip = -1}},
                                                     {"clip", {.clip = nan}},
                                                     {"weight_decay", {.weight_decay = -0.1}},
                                                     {"weight_decay", {.weight_decay = nan}},
                                                     {"validate_every", {.validate_every = -1}},
                                                     {"validate_every", {.validate_every = nan}},
                                                     {"checkpoint_seconds", {.checkpoint_seconds = nan}},
                                                     {"pass_tokens", {.pass_tokens = 0}},
                                                     {"length", {.length = 0}},
                                                     {"batch", {.batch = 0}},
                                                     {"lora.dropout", {.lora = {.dropout = 1}}},
                                                     {"lora.dropout", {.lora = {.dropout = nan}}},
                                                     {"lora.alpha", {.lora = {.alpha = nan}}},
                                                     {"warmup", {.warmup = nan}},
                                                     {"budget", {.budget = {.seconds = -1}}},
                                                     {"budget", {.budget = {.seconds = 1, .tokens = 1}}}})
    EXPECT(Refusal<shiftrt::UsageError>([&, &wrong = wrong] { CheckFinetune(model, wrong); }).find(field + ": ") == 0);
  EXPECT(Refusal<shiftrt::UsageError>([] { CheckGiven(shiftrt::Method::kPartial, "lora.rank"); }).find("lora.rank") ==
         0);
  EXPECT(Refusal<shiftrt::UsageError>([] { CheckGiven(shiftrt::Method::kLora, "lora.rank"); }).empty());
}

// A program that no launcher has started is one process.
void OneProcess() {
  const std::shared_ptr<shiftrt::Processes> processes = shiftrt::JoinProcesses();
  EXPECT(RankOf(*processes) == 0 && CountOf(*processes) == 1);
  Barrier(*processes);
  EXPECT(!ReportFailure(*processes, "nobody hears it"));
}

// A model that was trained is pruned and repaired as an original is.
void RepairsTrained(const shiftrt::LanguageModel& model, const std::filesystem::path& text) {
  for (const bool lora : {true, false}) {
    shiftrt::FinetuneSettings settings;
    settings.method = lora ? shiftrt::Method::kLora : shiftrt::Method::kPartial;
    settings.text = text.string();
    settings.length = 64;
    settings.validation = 2;
    settings.steps = 1;
    settings.batch = 1;
    const shiftrt::FinetunedModel tuned = Finetune(model, settings);
    const shiftrt::RepairResult repair = shiftrt::Repair(tuned.model, SmallRecipe(model));
    EXPECT(repair.corrected.Blocks() < tuned.model.Blocks());
    EXPECT(repair.corrected.Adapters() > 0);
  }
}

void Run(const char* name, const char* directory) {
  const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(name);
  Errors(model);
  LogitsAndLogProbabilities(model);
  Scores(model);
  WordsOfRecipes();
  EXPECT(model.Decode(model.Encode("the sea")) == "the sea");

  CountedProgress progress;
  const std::string kept = std::string(directory) + ".fit";
  const shiftrt::RepairResult repair = shiftrt::Repair(model, SmallRecipe(model), {}, &progress, kept);
  EXPECT(progress.begun > 0 && progress.done > 0);
  EXPECT(repair.report.selection.removed.size() == 4 && repair.report.sites.size() == 1 && !repair.merged);
  const std::vector<int64_t> removed = repair.corrected.RemovedLayers();
  EXPECT(removed.size() == 4);
  // The same recipe takes the fit from where it is kept; another one does not.
  CountedProgress again, other;
  EXPECT(shiftrt::Repair(model, SmallRecipe(model), {}, &again, kept).corrected.Parameters() ==
         repair.corrected.Parameters());
  EXPECT(again.done == 0);
  shiftrt::Recipe smaller = SmallRecipe(model);
  smaller.rank = shiftrt::RankSpec::Fixed(4);
  EXPECT(shiftrt::Repair(model, smaller, {}, &other, kept).corrected.Parameters() < repair.corrected.Parameters());
  EXPECT(other.done > 0);
  // A directory with files of others is not taken, and they stay.
  const std::filesystem::path of_others = std::filesystem::path(kept) / "results.txt";
  std::ofstream(of_others) << "text";
  EXPECT(Refusal<shiftrt::UsageError>([&] {
           shiftrt::Repair(model, smaller, {}, nullptr, kept);
         }).find("results.txt") != std::string::npos);
  EXPECT(std::filesystem::remove(of_others));
  EXPECT(repair.pruned.Parameters() < repair.corrected.Parameters());
  EXPECT(repair.corrected.Parameters() < model.Parameters());
  EXPECT(model.Without(removed).Parameters() == repair.pruned.Parameters());
  const std::vector<shiftrt::BlockPart> half = {{1, shiftrt::Halves::kMlp}};
  EXPECT(model.Without(half).Parameters() < model.Parameters());
  EXPECT(model.Without(half).Blocks() == model.Shape().layers);
  EXPECT(shiftrt::Repair(repair.corrected, SmallRecipe(model)).corrected.Blocks() < repair.corrected.Blocks());
  EXPECT(Refusal<shiftrt::UsageError>([&] {
           shiftrt::Repair(model.Without(half), SmallRecipe(model));
         }).find("one half runs") != std::string::npos);

  repair.corrected.Save(directory);
  const std::string spoken = Speak(repair.corrected, 2);
  const shiftrt::LanguageModel opened = shiftrt::LanguageModel::Open(directory);
  EXPECT(Speak(opened, 2) == spoken);
  EXPECT(model.MadeBy() == nullptr && repair.corrected.MadeBy()->repair->sites.size() == 1);
  EXPECT(shiftrt::ToJson(*opened.MadeBy()) == shiftrt::ToJson(*repair.corrected.MadeBy()));
  const std::string again_saved = std::string(directory) + ".again";
  opened.Save(again_saved);
  EXPECT(shiftrt::ToJson(*shiftrt::LanguageModel::Open(again_saved).MadeBy()) == shiftrt::ToJson(*opened.MadeBy()));

  const std::filesystem::path text = std::string(directory) + ".txt";
  std::string some(20000, ' ');  // bytes: the whole text takes minutes under the sanitizers
  std::ifstream(model.Directory() / "calibration.txt").read(some.data(), static_cast<std::streamsize>(some.size()));
  std::ofstream(text) << some;
  const double original = shiftrt::MeasurePerplexity(model, text.string(), {"seq128"}).perplexity;
  const double pruned = shiftrt::MeasurePerplexity(repair.pruned, text.string(), {"seq128"}).perplexity;
  EXPECT(original > 1 && original < pruned);
  const shiftrt::TextPerplexity part = shiftrt::MeasurePerplexity(model, text.string(), {"seq128", 300});
  EXPECT(part.tokens == 300 && part.predicted == 2 * 127 && part.all > 300);
  Suites(repair, text);
  Train(repair.corrected, text, directory);
  RefusesTrainings(model);
  RepairsTrained(model, text);

  TwoThreads(model, repair, Speak(model, 2));
  Chats(model, std::string(directory) + ".chat");
  Tokenizes(model);
  Describes(model, repair);
  Sweeps(model, std::string(directory) + ".sweep");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  EXPECT(shiftrt::Version() == std::to_string(SHIFTRT_VERSION_MAJOR) + "." + std::to_string(SHIFTRT_VERSION_MINOR) +
                                   "." + std::to_string(SHIFTRT_VERSION_PATCH));
  try {
    OneProcess();
    Run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
