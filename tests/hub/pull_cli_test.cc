// SPDX-License-Identifier: Apache-2.0
// `shiftrt pull`, and commands that pull what `--model` names, against the hub of the tests.
#include <chrono>
#include <cstring>
#include <thread>

#include "hub/cache.h"
#include "runtime/random.h"
#include "tests/hub/test_hub.h"
#include "tests/test_directory.h"
#include "tests/tools/campaign.h"
#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

class PullCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    for (const auto& [name, value] : {std::pair<const char*, std::string>{"HF_ENDPOINT", hub_.endpoint()},
                                      {"HF_HUB_CACHE", Path("hub")},
                                      {"HF_TOKEN_PATH", Path("token")},
                                      {"no_proxy", "*"}})
      ::setenv(name, value.c_str(), 1);
    ::unsetenv("HF_HUB_OFFLINE");
    TestRepository model;
    for (const auto& entry : fs::directory_iterator(dir_ / "model"))
      model.files.push_back(
          {entry.path().filename(), ReadFile(entry.path()), entry.path().extension() == ".safetensors"});
    hub_.Add("models/org/tiny", model);
    hub_.Add("models/Qwen/Qwen2-0.5B", model);
    // Three pieces, so that the first is whole and others are not when it is interrupted.
    large_.files = {{"config.json", "{}"}, {"model.safetensors", std::string(80 << 20, 'm'), true}};
    for (size_t i = 0; i < large_.files[1].content.size(); i += 4096)
      large_.files[1].content.replace(i, 8, fmt::format("{:08}", i / 4096));
  }
  void TearDown() override {
    for (const char* name : {"HF_ENDPOINT", "HF_HUB_CACHE", "HF_TOKEN_PATH"}) ::unsetenv(name);
    Cli::TearDown();
  }

  fs::path Snapshot(const std::string& folder) const {
    return dir_ / "hub" / folder / "snapshots" / std::string(40, 'c');
  }
  // Starts a pull of a large file and waits until the hub holds back the rest of it.
  pid_t PullUntilItHangs(int64_t bytes) {
    hub_.behaviour.hang_after = bytes;
    hub_.Add("models/org/large", large_);
    const pid_t child = Start({"pull", "org/large"}, dir_ / "stdout", dir_ / "stderr");
    while (!hub_.Hangs() && !Ended(child)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(Ended(child)) << ReadFile(dir_ / "stderr");
    WaitUntilWritten(bytes);
    return child;
  }
  // The client writes the bytes some moments after they were sent.
  void WaitUntilWritten(int64_t bytes) const {
    for (int i = 0; i < 400 && Written() < bytes; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(Written(), bytes);
  }
  int64_t Written() const {
    const fs::path record =
        dir_ / "hub/models--org--large/blobs" / (large_.etag_of(large_.files[1]) + ".shiftrt.pieces.incomplete");
    if (!fs::exists(record)) return 0;
    const std::string text = ReadFile(record);
    int64_t sum = 0;
    for (size_t at = 3 * sizeof(int64_t); at + sizeof(int64_t) <= text.size(); at += sizeof(int64_t)) {
      int64_t done = 0;
      std::memcpy(&done, text.data() + at, sizeof done);
      sum += done;
    }
    return sum;
  }
  void Release() {
    const auto lock = hub_.Lock();
    hub_.behaviour.hang_after = -1;
  }

  TestHub hub_;
  TestRepository large_;
};

TEST_F(PullCli, PullsAndPrintsTheDirectory) {
  const Outcome dry = Call({"pull", "org/tiny", "--dry-run"});
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_NE(dry.out.find("model.safetensors"), std::string::npos);
  EXPECT_EQ(hub_.BodyBytes(), 0);
  const Outcome outcome = Call({"pull", "org/tiny"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, Snapshot("models--org--tiny").string() + "\n");
  EXPECT_NE(outcome.err.find("org/tiny, commit cccccccccccc: 4 files"), std::string::npos) << outcome.err;
  EXPECT_EQ(MissingOfModel(Snapshot("models--org--tiny")), "");
  const Outcome again = Call({"pull", "org/tiny"});
  EXPECT_NE(again.err.find("all of it there"), std::string::npos) << again.err;
  EXPECT_EQ(Call({"pull", "org/tiny", "--quiet"}).err, "");
}

TEST_F(PullCli, CommandsPullWhatTheirModelNames) {
  const std::vector<std::string> generate = {"generate",     "--model", "org/tiny",  "--prompt", "the sea",
                                             "--max-tokens", "3",       "--threads", "1"};
  std::vector<std::string> offline = generate;
  offline.push_back("--offline");
  EXPECT_FAILS(Call(offline), 1, "shiftrt pull org/tiny");
  EXPECT_EQ(hub_.Requests().size(), 0u);
  const Outcome first = Call(generate);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_NE(first.err.find("org/tiny, commit"), std::string::npos) << first.err;
  const size_t requests = hub_.Requests().size();
  const Outcome second = Call(offline);
  EXPECT_EQ(second.out, first.out);
  Call(generate);
  EXPECT_EQ(hub_.Requests().size(), requests);  // what is there is used without a word to the hub
  EXPECT_EQ(Call({"tokenize", "--model", "qwen2-0.5b", "--ids", "the sea"}).status, 0);
  EXPECT_TRUE(fs::exists(Snapshot("models--Qwen--Qwen2-0.5B")));
  // A file that is lacking is pulled.
  fs::remove(Snapshot("models--org--tiny") / "model.safetensors");
  EXPECT_FAILS(Call(offline), 1, "or not all of it");
  EXPECT_EQ(Call(generate).out, first.out);
}

TEST_F(PullCli, OfflineForbidsIt) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_FAILS(Call({"pull", "org/tiny"}), 1, "HF_HUB_OFFLINE is set");
  EXPECT_FAILS(Call({"tokenize", "--model", "qwen2-0.5b", "x"}), 1, "HF_HUB_OFFLINE forbids");
  ::unsetenv("HF_HUB_OFFLINE");
  EXPECT_EQ(hub_.Requests().size(), 0u);
}

TEST_F(PullCli, WrongUsage) {
  EXPECT_FAILS(Call({"tokenize", "--model", "out/model", "x"}), 1,
               "--model out/model: there is no such directory, and the cache of the hub lacks this model. out/model");
  EXPECT_EQ(hub_.Requests().size(), 1u);
  EXPECT_FAILS(Call({"tokenize", "--model", "out/model.gguf", "x"}), 1, "out/model.gguf");
  EXPECT_EQ(hub_.Requests().size(), 1u);
  EXPECT_FAILS(Call({"pull", "nonsense"}), 2, "qwen2-1.5b");
  EXPECT_FAILS(Call({"pull", "a/b", "--revision", "../c"}), 2, "--revision: ../c");
  EXPECT_FAILS(Call({"pull", "--dataset", "nonsense"}), 2, "ORG/NAME");
  EXPECT_FAILS(Call({"pull"}), 2, "name is required");
}

// A text known by name, and the one that is calibrated on where none is named.
TEST_F(PullCli, CalibrationTextIsPulled) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += Json{{"text", Words(60 + i)}}.dump() + "\n";
  TestRepository c4;
  c4.files = {{"en/c4-validation.00000-of-00008.json.gz", lines, true}};
  hub_.Add("datasets/allenai/c4", c4);
  const std::vector<std::string> run = {"run",     "--model",      Path("model"), "--text",    Path("heldout.txt"),
                                        "--prune", "reverse:1",    "--lra",       "4",         "--prompt",
                                        "the",     "--max-tokens", "2",           "--threads", "1"};
  std::vector<std::string> offline = run;
  offline.push_back("--offline");
  EXPECT_FAILS(Call(offline), 2, "shiftrt pull --dataset c4");
  EXPECT_EQ(hub_.Requests().size(), 0u);
  const Outcome outcome = Call(run);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("allenai/c4, commit"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("c4-validation.00000-of-00008.json.gz"), std::string::npos) << outcome.out;
  // The other kinds of text that it would calibrate on are not in the hub.
  EXPECT_NE(outcome.err.find("the calibration text lacks wikitext2, alpaca, code-alpaca, because they are not"),
            std::string::npos)
      << outcome.err;
  const size_t requests = hub_.Requests().size();
  EXPECT_EQ(Call(offline).status, 0);
  EXPECT_EQ(hub_.Requests().size(), requests);
  EXPECT_FAILS(Run({"--calib", "alpaca"}), 1, "the text alpaca is not on this machine");
}

// The hub does not have the texts that a run takes if none is named. It measures on other text, or not at all.
TEST_F(PullCli, ARunDoesWithoutTheTextsThatItCannotPull) {
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", "--model", "org/tiny", "--quiet", "--threads", "1", "--prune", "layers=1",
                               "--max-tokens", "2", "--prompt", "the"});
    return Call(more);
  };
  const Outcome pruned = run({"--correction", "none", "--save", Path("pruned")});
  EXPECT_EQ(pruned.status, 0) << pruned.err;
  EXPECT_NE(pruned.err.find("the text wikitext2-test is not on this machine"), std::string::npos) << pruned.err;
  EXPECT_NE(pruned.out.find("no perplexity, because there is no held-out text: run with --text FILE"),
            std::string::npos)
      << pruned.out;
  EXPECT_TRUE(fs::exists(dir_ / "pruned/shiftrt.json"));
  const Outcome fitted = run({"--lra", "2"});
  EXPECT_NE(fitted.err.find("the text c4 is not on this machine"), std::string::npos) << fitted.err;
  EXPECT_FAILS(fitted, 2, "give calibration text with --calib");
  EXPECT_FAILS(run({"--correction", "none", "--text", "wikitext2-test"}), 1, "the text wikitext2-test");
  // A file that was named and is not there is reported before a text that nobody named.
  const Outcome missing = run({"--lra", "2", "--text", "nofile.txt"});
  EXPECT_EQ(missing.err, "shiftrt: nofile.txt: no such file\n");
  EXPECT_EQ(missing.status, 1);
  const Outcome mixed = run({"--lra", "2", "--recover", "tokens=1k", "--recover-text", "c4,none.jsonl"});
  EXPECT_EQ(mixed.err, "shiftrt: none.jsonl: no such file\n");
  const Outcome training = Call({"finetune", "--model", "org/tiny", "--text", "nofile.txt", "--save", Path("tuned")});
  EXPECT_EQ(training.err, "shiftrt: nofile.txt: no such file\n");
  const Outcome sweep = Call({"sweep", "--model", "org/tiny", "--text", "nofile.txt"});
  EXPECT_EQ(sweep.err, "shiftrt: nofile.txt: no such file\n");
}

TEST_F(PullCli, KnownDatasetsHaveNames) {
  TestRepository arc;
  arc.files = {{"ARC-Easy/test/0000.parquet", "P", true}, {"ARC-Easy/train/0000.parquet", "Q", true}};
  hub_.Add("datasets/allenai/ai2_arc", arc);
  const Outcome outcome = Call({"pull", "--dataset", "arc_easy"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const fs::path snapshot = Snapshot("datasets--allenai--ai2_arc");
  EXPECT_EQ(outcome.out, snapshot.string() + "\n");
  EXPECT_TRUE(fs::exists(snapshot / "ARC-Easy/test/0000.parquet"));
  EXPECT_FALSE(fs::exists(snapshot / "ARC-Easy/train/0000.parquet"));
  EXPECT_EQ(ReadFile(dir_ / "hub/datasets--allenai--ai2_arc/refs/refs/convert/parquet"), std::string(40, 'c'));
}

// A run needs nothing but names on the command line and a network.
TEST_F(PullCli, ARunNeedsNothingButNames) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += Json{{"text", Words(60 + i)}}.dump() + "\n";
  const fs::path goldens = TestDirectory() / "goldens/parquet";
  TestRepository c4, wikitext, arc;
  c4.files = {{"en/c4-validation.00000-of-00008.json.gz", lines, true}};
  wikitext.files = {{"wikitext-2-raw-v1/test-00000-of-00001.parquet", ReadFile(goldens / "groups.parquet"), true}};
  arc.files = {{"ARC-Easy/test/0000.parquet", ReadFile(goldens / "arc_easy_test.parquet"), true}};
  hub_.Add("datasets/allenai/c4", c4);
  hub_.Add("datasets/Salesforce/wikitext", wikitext);
  hub_.Add("datasets/allenai/ai2_arc", arc);
  const std::vector<std::string> run = {"run",       "--model",  "qwen2-0.5b", "--prune",      "reverse:1",
                                        "--lra",     "4",        "--eval",     "arc_easy",     "--limit",
                                        "2",         "--prompt", "the",        "--max-tokens", "2",
                                        "--threads", "1",        "--protocol", "seq128"};
  const Outcome outcome = Call(run);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* pulled : {"Qwen/Qwen2-0.5B, commit", "allenai/c4, commit", "Salesforce/wikitext, commit",
                             "allenai/ai2_arc@refs/convert/parquet, commit"})
    EXPECT_NE(outcome.err.find(pulled), std::string::npos) << pulled << " in " << outcome.err;
  EXPECT_NE(outcome.out.find("ARC-e: 2 items"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("test-00000-of-00001.parquet"), std::string::npos) << outcome.out;
  const size_t requests = hub_.Requests().size();
  std::vector<std::string> offline = run;
  offline.push_back("--offline");
  EXPECT_EQ(Call(offline).status, 0);
  EXPECT_EQ(hub_.Requests().size(), requests);
}

// Killed in the middle of a file, with several pieces under way: the second run fetches exactly the rest.
TEST_F(PullCli, AKillLosesNothing) {
  constexpr int64_t kSent = 50'000'000;
  const pid_t child = PullUntilItHangs(kSent);
  ::kill(child, SIGKILL);
  EXPECT_EQ(Wait(child), 128 + SIGKILL);
  Release();
  const int64_t before = hub_.BodyBytes();
  const Outcome second = Call({"pull", "org/large"});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_NE(second.err.find("are to come"), std::string::npos) << second.err;
  EXPECT_EQ(hub_.BodyBytes() - before, std::ssize(large_.files[1].content) - kSent);
  EXPECT_TRUE(ReadFile(Snapshot("models--org--large") / "model.safetensors") == large_.files[1].content);
}

TEST_F(PullCli, AnInterruptionSaysThatWhatIsThereIsKept) {
  const pid_t child = PullUntilItHangs(10'000'000);
  ::kill(child, SIGINT);
  EXPECT_EQ(Wait(child), 130);
  const std::string said = ReadFile(dir_ / "stderr");
  EXPECT_NE(said.find("what has arrived is kept"), std::string::npos) << said;
  EXPECT_EQ(Written(), 10'000'000);
  Release();
}

// A pull that is killed at random moments and given again has every byte in the end, and keeps what it had. Every
// second time, the hub also cuts each connection after a random byte with a probability of 0.5.
TEST_F(PullCli, KilledAtRandomMomentsItEndsInTheSameFiles) {
  TestRepository repository = large_;
  repository.files[1].content.resize(8 << 20);
  hub_.Add("models/org/medium", repository);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(Call({"pull", "org/medium"}).status, 0);
  const auto duration =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  Random random(26);
  int in_time = 0;
  for (int kill = 0; kill < Kills(3); ++kill) {
    fs::remove_all(dir_ / "hub");
    {
      const auto lock = hub_.Lock();
      hub_.behaviour.cut = kill % 2 == 0 ? 0 : 0.5;
    }
    for (int more = 0; more < 2; ++more) {  // the second continues what the first has left
      const pid_t child = Start({"pull", "org/medium"}, dir_ / "stdout", dir_ / "stderr");
      ::usleep(static_cast<useconds_t>(random.Below(duration)));
      ::kill(child, SIGKILL);
      in_time += Wait(child) == 128 + SIGKILL ? 1 : 0;
    }
    const Outcome again = Call({"pull", "org/medium"});
    ASSERT_EQ(again.status, 0) << again.err;
    for (const TestFile& file : repository.files)
      EXPECT_TRUE(ReadFile(Snapshot("models--org--medium") / file.path) == file.content) << file.path;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "hub"))
      EXPECT_EQ(entry.path().string().find("incomplete"), std::string::npos) << entry.path();
    EXPECT_EQ(Call({"pull", "org/medium", "--verify"}).status, 0);
  }
  EXPECT_TRUE(hub_.Cuts() > 0 || Kills(3) < 20);  // three rounds may go without a cut
  std::printf("pull: %d killed, %d had ended before, %ld connections cut\n", in_time, 2 * Kills(3) - in_time,
              hub_.Cuts());
}

// Two programs that pull the same repository share the cache.
TEST_F(PullCli, TwoAtOnceLeaveOneWholeCopy) {
  const pid_t first = Start({"pull", "org/tiny"}, dir_ / "stdout1", dir_ / "stderr1");
  const pid_t second = Start({"pull", "org/tiny"}, dir_ / "stdout2", dir_ / "stderr2");
  EXPECT_EQ(Wait(first), 0) << ReadFile(dir_ / "stderr1");
  EXPECT_EQ(Wait(second), 0) << ReadFile(dir_ / "stderr2");
  EXPECT_EQ(MissingOfModel(Snapshot("models--org--tiny")), "");
  EXPECT_EQ(Call({"pull", "org/tiny", "--verify"}).status, 0);
}

}  // namespace
}  // namespace shiftrt
