// SPDX-License-Identifier: Apache-2.0
// No output replaces what the user has: an input, a file of the model, another output, or a file taken for a journal.
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class OutputsCli : public Cli {
 protected:
  // Expects that the command is refused before the work, for both of these reasons, and leaves the file as it is.
  void ExpectKept(const Outcome& refused, const std::string& file, const std::string& text, const std::string& first,
                  const std::string& second = "") {
    EXPECT_FAILS(refused, 2, first);
    EXPECT_FAILS(refused, 2, second);
    EXPECT_EQ(refused.out, "");
    EXPECT_EQ(ReadFile(dir_ / file), text) << first;
  }
  std::vector<std::string> Eval(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"--tasks", "piqa", "--data", EvalData(), "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<std::string> Sweep(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--prune", "layers=2", "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(OutputsCli, OnlyAJournalIsTakenForOne) {
  for (const char* const notes : {"notes of the user\n", "no end of line", "cafe", "0123456789abcdef: a hash\n"}) {
    WriteText(dir_ / "notes.txt", notes);
    const auto refused = [&](const Outcome& outcome) {
      ExpectKept(outcome, "notes.txt", notes, "notes.txt: this file is no journal", "--journal");
    };
    refused(Command("eval", Eval({"--journal", Path("notes.txt")})));
    refused(Command("sweep", Sweep({"--journal", Path("notes.txt")})));
    refused(Run({"--eval", "piqa", "--data", EvalData(), "--journal", Path("notes.txt")}));
    WriteText(dir_ / "o.jsonl.journal", notes);
    WriteText(dir_ / "prompts.txt", "the sea\n");
    ExpectKept(Command("generate", {"--prompts", Path("prompts.txt"), "--out", Path("o.jsonl"), "--quiet"}),
               "o.jsonl.journal", notes, "o.jsonl.journal: this file is no journal", "--out");
  }
  // A program was killed in its first line.
  WriteText(dir_ / "broken", "0123456789abcdef {\"ba");
  EXPECT_EQ(Command("eval", Eval({"--journal", Path("broken")})).status, 0);
  EXPECT_FALSE(fs::exists(dir_ / "broken"));
}

TEST_F(OutputsCli, AJournalIsRemovedWithoutFilesOfSimilarNames) {
  const char* const names[] = {"journal.processed.txt", "journal.process", "journal.process2.txt", "journal.txt"};
  for (const char* const name : names) WriteText(dir_ / name, "of the user\n");
  WriteText(dir_ / "journal.process2", "");
  const Outcome outcome = Command("eval", Eval({"--journal", Path("journal")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* const name : names) EXPECT_TRUE(fs::exists(dir_ / name)) << name;
  for (const char* const name : {"journal", "journal.process2"}) EXPECT_FALSE(fs::exists(dir_ / name)) << name;
}

TEST_F(OutputsCli, NoOutputReplacesAnInput) {
  const std::string heldout = ReadFile(dir_ / "heldout.txt"), calibration = ReadFile(dir_ / "calibration.txt");
  fs::create_symlink(dir_, dir_ / "link");
  for (const char* const name : {"heldout.txt", "./heldout.txt", "link/heldout.txt"})
    ExpectKept(Command("ppl", {"--text", Path("heldout.txt"), "--json", Path(name)}), "heldout.txt", heldout, "--json",
               "--text");
  ExpectKept(Run({"--json", Path("calibration.txt")}), "calibration.txt", calibration, "--json", "--calib");
  ExpectKept(Run({"--recover", "tokens=1k", "--recover-text", Path("heldout.txt") + "," + Path("calibration.txt"),
                  "--calib", "c4", "--save-gram", Path("calibration.txt")}),
             "calibration.txt", calibration, "--save-gram", "--recover-text");
  WriteText(dir_ / "ids.txt", "1 2 3");
  ExpectKept(Command("dump", {"--tokens", Path("ids.txt"), "--logits", "--out", Path("ids.txt")}), "ids.txt", "1 2 3",
             "--out", "--tokens");
  ExpectKept(Command("generate", {"--prompts", Path("ids.txt"), "--out", Path("ids.txt")}), "ids.txt", "1 2 3", "--out",
             "--prompts");
  WriteText(dir_ / "rows.jsonl", PiqaRows(2));
  ExpectKept(
      Command("eval", {"--tasks", "piqa", "--data", "piqa=" + Path("rows.jsonl"), "--items", Path("rows.jsonl")}),
      "rows.jsonl", PiqaRows(2), "--items", "--data");
}

// Reports may lie in the directory of the model, but not in the place of its files.
TEST_F(OutputsCli, NoOutputReplacesAFileOfTheModel) {
  const auto ppl = [&](const std::string& json) {
    return Command("ppl", {"--text", Path("heldout.txt"), "--quiet", "--json", Path(json)});
  };
  for (const char* const file : {"config.json", "tokenizer.json", "model.safetensors"})
    ExpectKept(ppl(std::string("model/") + file), std::string("model/") + file,
               ReadFile(dir_ / (std::string("model/") + file)), "--json", "--model");
  for (int time = 0; time < 2; ++time) EXPECT_EQ(ppl("model/ppl.json").status, 0);
}

TEST_F(OutputsCli, TwoOutputsHaveTwoNames) {
  EXPECT_FAILS(Command("sweep", Sweep({"--csv", Path("same"), "--json", Path("./same")})), 2, "writes to the same");
  EXPECT_FAILS(Command("sweep", Sweep({"--csv", Path("same"), "--markdown", Path("same")})), 2, "--markdown");
  EXPECT_FAILS(Command("eval", Eval({"--items", Path("same"), "--journal", Path("same")})), 2, "--items");
  EXPECT_FAILS(Command("eval", Eval({"--json", Path("same"), "--journal", Path("same")})), 2, "--json");
  EXPECT_FAILS(Run({"--save", Path("same/"), "--json", Path("same")}), 2, "--save");
  EXPECT_FAILS(Run({"--export", "hf-lra:" + Path("same"), "--json", Path("same")}), 2, "--export");
  EXPECT_FALSE(fs::exists(dir_ / "same"));
  const Outcome nowhere = Command("sweep", Sweep({"--lra", "2", "--csv", "/dev/null", "--json", "/dev/null"}));
  EXPECT_EQ(nowhere.status, 0) << nowhere.err;
}

TEST_F(OutputsCli, AModelOfSomebodyElseIsNotSavedOver) {
  WriteModel("other");
  const std::string config = ReadFile(dir_ / "other/config.json");
  for (const bool weights : {false, true}) {
    std::vector<std::string> arguments = {"--prune", "layers=1", "--save", Path("other")};
    if (weights) arguments.push_back("--save-weights");
    ExpectKept(Run(arguments), "other/config.json", config, "that shiftrt has not saved", "--save");
  }
  EXPECT_FALSE(fs::exists(dir_ / "other/shiftrt.json"));
  // A model that shiftrt has saved is replaced, also if the command was killed while it renamed the files.
  const std::vector<std::string> own = {"--prune", "layers=1", "--save", Path("own"), "--save-weights"};
  for (int time = 0; time < 2; ++time) EXPECT_EQ(Run(own).status, 0);
  fs::rename(dir_ / "own/shiftrt.json", dir_ / "own/shiftrt.json.tmp-shiftrt-17-0123abcd");
  EXPECT_EQ(Run(own).status, 0);
}

TEST_F(OutputsCli, AnEmptyValueIsNoValue) {
  const std::string empty = ": its value is empty";
  for (const char* const option : {"--json", "--save-gram", "--recover", "--recipe", "--save", "--report"})
    EXPECT_FAILS(Run({option, ""}), 2, option + empty);
  EXPECT_FAILS(Command("inspect", {"--prune", ""}), 2, "--prune" + empty);
  EXPECT_FAILS(Command("dump", {"--tokens", "1 2", "--logits", "--out", ""}), 2, "--out" + empty);
  EXPECT_FAILS(Command("eval", Eval({"--prune", "layers=1", "--calib", ""})), 2, "--calib" + empty);  // in a group
  EXPECT_EQ(Command("generate", {"--prompt", "hi", "--max-tokens", "1"}).status, 0);
}

}  // namespace
}  // namespace shiftrt
