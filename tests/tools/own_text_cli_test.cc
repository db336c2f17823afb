// SPDX-License-Identifier: Apache-2.0
// Trainings on what the original model answers to prompts: `run --recover-text own` and `finetune --calib own`.
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class OwnTextCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string prompts;
    for (int i = 0; i < 40; ++i) prompts += "the sea was " + std::to_string(i) + "\n";
    WriteText(dir_ / "prompts.txt", prompts);
    own_ = "own:" + Path("prompts.txt");
  }
  std::vector<std::string> Recovery(const std::string& save, const std::string& text, const std::string& budget) const {
    return {"run",     "--threads",
            "1",       "--no-gate",
            "--model", Path("model"),
            "--prune", "layers=1",
            "--lra",   "4",
            "--calib", Path("calibration.txt:16x64"),
            "--text",  Path("heldout.txt"),
            "--quiet", "--recover",
            budget,    "--recover-text",
            text,      "--save",
            Path(save)};
  }
  Outcome Finetune(const std::string& text, std::vector<std::string> more, const std::string& save = "tuned") const {
    more.insert(more.begin(), {"finetune", "--threads", "1", "--model", Path("repaired"), "--calib", text, "--save",
                               Path(save), "--quiet"});
    return Call(more);
  }
  void Repair() { ASSERT_EQ(Run({"--prune", "layers=1", "--save", Path("repaired")}).status, 0); }
  std::string Weights(const std::string& name) const {
    std::string all;
    for (const auto& entry : fs::directory_iterator(dir_ / name))
      if (entry.path().extension() == ".safetensors") all += ReadFile(entry.path());
    return all;
  }
  std::vector<fs::path> Answers() const {
    std::vector<fs::path> files;
    if (!fs::exists(dir_ / "cache/shiftrt")) return files;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/shiftrt"))
      if (entry.path().filename().string().starts_with("own-")) files.push_back(entry.path());
    return files;
  }

  std::string own_;
};

TEST_F(OwnTextCli, RunAndFinetuneLearnTheSame) {
  const Outcome run = Call(Recovery("whole", own_, "tokens=2k"));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("text: own answers to prompts.txt, "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find(" answers of the original model, written in "), std::string::npos) << run.out;
  ASSERT_EQ(Answers().size(), size_t{1});
  const std::string answers = ReadFile(Answers()[0]);

  Repair();
  const std::vector<std::string> preset = {"--preset", "recover", "--budget", "tokens=2k"};
  ASSERT_EQ(Finetune(own_, preset).status, 0);
  EXPECT_TRUE(Weights("tuned") == Weights("whole"));
  EXPECT_EQ(ReadFile(Answers()[0]), answers) << "the answers of the first command are taken";
  fs::remove(Answers()[0]);
  ASSERT_EQ(Finetune(own_, preset, "again").status, 0);
  EXPECT_TRUE(Weights("again") == Weights("whole")) << "the seed decides";

  std::vector<std::string> other = preset;
  other.insert(other.end(), {"--seed", "1"});
  ASSERT_EQ(Finetune(own_, other, "other").status, 0);
  EXPECT_EQ(Answers().size(), size_t{2});
  EXPECT_FALSE(Weights("other") == Weights("whole"));
}

// A prompt is a user's message in the model's template, whose tokens are not predicted.
TEST_F(OwnTextCli, PromptsAreWrittenAsTheTemplateSays) {
  Repair();
  const auto counts = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--steps", "4", "--batch", "2", "--validation", "2", "--length", "100"});
    const Outcome outcome = Finetune(own_, more, "t");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    fs::remove_all(dir_ / "t");
    const size_t at = outcome.out.find(" sequences with ");
    int tokens = 0, predicted = 0;
    EXPECT_EQ(std::sscanf(outcome.out.c_str() + at, " sequences with %d tokens, %d of them", &tokens, &predicted), 2)
        << outcome.out;
    return std::pair(tokens, predicted);
  };
  const auto [bare, bare_predicted] = counts({});
  const auto [tokens, all_predicted] = counts({"--train-on-inputs"});
  EXPECT_EQ(tokens, bare);
  EXPECT_EQ(all_predicted, tokens - 8) << "all but the first token of each sequence";
  EXPECT_LT(bare_predicted, tokens - 8 * 3);
  WriteText(dir_ / "model/chat_template.jinja",
            "{% for m in messages %}the user said {{ m.content }} and the reply was {% endfor %}");
  const auto [chat, chat_predicted] = counts({});
  EXPECT_GT(chat - chat_predicted, bare - bare_predicted + 8 * 4) << "the template makes prompts longer";
}

TEST_F(OwnTextCli, AnInterruptedCommandContinues) {
  ASSERT_EQ(Call(Recovery("whole", own_ + "," + Path("calibration.txt"), "tokens=3k")).status, 0);
  const auto run = Recovery("killed", own_ + "," + Path("calibration.txt"), "tokens=3k");
  const std::string expected = ReadFile(Answers().at(0));
  // A file of answers that is not complete is there. One that is written first has another name for a moment.
  const auto kept = [&] {
    const auto answers = Answers();
    return answers.size() == 1 && answers[0].extension() == ".partial";
  };
  int status = 0;
  for (int attempt = 0; status == 0; ++attempt) {  // until the program is caught while it generates
    ASSERT_LT(attempt, 20);
    fs::remove_all(dir_ / "killed");
    for (const fs::path& file : Answers()) fs::remove(file);
    const pid_t child = Start(run, dir_ / "stdout", dir_ / "stderr");
    while (!kept() && !Ended(child)) ::usleep(200);
    ::kill(child, SIGINT);
    status = Wait(child);
    if (status == 130 && !kept()) status = 0;
  }
  EXPECT_EQ(status, 130);
  EXPECT_NE(ReadFile(dir_ / "stderr").find("finished answers are kept in"), std::string::npos)
      << ReadFile(dir_ / "stderr");
  const Outcome resumed = Call(run);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  ASSERT_EQ(Answers().size(), size_t{1});
  EXPECT_EQ(Answers()[0].extension(), ".answers");
  EXPECT_TRUE(Weights("killed") == Weights("whole"));
}

TEST_F(OwnTextCli, TheTimeOfAnswersCounts) {
  const Outcome timed = Call(Recovery("timed", own_, "2s"));
  ASSERT_EQ(timed.status, 0) << timed.err;
  const Json settings = ReadJson("timed/shiftrt.json")["provenance"]["finetune"]["settings"];
  const double left = std::stod(settings["seconds"].get<std::string>());
  EXPECT_LT(left, 2);
  // Answers begin within a third of the budget. The last of them may end later on a machine that has other work.
  EXPECT_GT(left, 2 * 1.0 / 3);
  EXPECT_EQ(Call(Recovery("again", own_, "2s")).status, 0);
  EXPECT_EQ(ReadJson("again/shiftrt.json")["provenance"]["finetune"]["settings"]["seconds"], settings["seconds"])
      << "answers that are there count their time again";
}

TEST_F(OwnTextCli, WhatCannotBeAnsweredIsNamed) {
  EXPECT_FAILS(Call(Recovery("x", "own:none.txt", "tokens=1k")), 1, "none.txt: no such file");
  EXPECT_FAILS(Call(Recovery("x", "own", "tokens=1k")), 1, "alpaca");
  EXPECT_FAILS(Call(Recovery("x", own_ + ":0%", "tokens=1k")), 2, "--recover-text: ");
  EXPECT_FAILS(Call(Recovery("x", "own:", "tokens=1k")), 2, "expected a file of prompts after the colon");
  EXPECT_FAILS(Call(Recovery("x", own_ + ":60%," + Path("calibration.txt") + ":60%", "tokens=1k")), 2,
               "are 120% together");
  WriteText(dir_ / "empty.txt", "\n");
  EXPECT_FAILS(Call(Recovery("x", "own:" + Path("empty.txt"), "tokens=1k")), 1, "empty.txt: it has no prompt");
  WriteText(dir_ / "bad.txt", "\xff\n");
  EXPECT_FAILS(Call(Recovery("x", "own:" + Path("bad.txt"), "tokens=1k")), 1, "bad.txt: prompt 1: ");
  EXPECT_EQ(Run({"--prune", "layers=1", "--save", Path("repaired"), "--save-weights"}).status, 0);
  EXPECT_FAILS(Finetune(own_, {"--steps", "2"}), 2, "--calib: it takes the original model, but ");
  EXPECT_FAILS(Finetune(own_ + ":50%,:", {"--steps", "2"}), 1, "no text called :");
  // The prompts are an input, over which nothing is written.
  std::vector<std::string> over = Recovery("x", own_ + ":100%", "tokens=1k");
  over.insert(over.end(), {"--json", Path("prompts.txt")});
  EXPECT_FAILS(Call(over), 2, "--recover-text");
}

}  // namespace
}  // namespace shiftrt
