// SPDX-License-Identifier: Apache-2.0
// What the program does when the machine refuses: no room for its output, no reader, damaged journals, pipes in the
// place of files, little memory.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/tools/cli.h"

namespace shiftrt {
namespace {

void OutputTo(const char* file) {
  const int fd = ::open(file, O_WRONLY);
  ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
}

TEST_F(Cli, OutputThatIsLostIsAnError) {
  const std::string model = " --threads 1 --model " + Path("model"), text = " --text " + Path("heldout.txt");
  const std::string calibration = " --calib " + Path("calibration.txt:4x16");
  for (const std::string& command :
       {std::string("--help"), std::string("--version"), std::string("run --help"),
        "tokenize the --model " + Path("model"), "inspect --model " + Path("model"), "ppl" + model + text,
        "generate --prompt the --max-tokens 2" + model, "eval --tasks piqa --data " + EvalData() + model,
        "run --prune layers=1 --lra 2" + model + text + calibration,
        "sweep --prune layers=1 --lra 2" + model + text + calibration,
        "finetune --steps 1 --batch 2 --length 16 --validation 2 --save " + Path("out") + " --calib " +
            Path("calibration.txt") + model,
        "export --format hf --prune layers=1 --save " + Path("out") + model}) {
    const auto status = [&](const std::function<void()>& prepare) {
      fs::remove_all(dir_ / "out");
      return StatusOf(Split(command), dir_ / "err", prepare);
    };
    EXPECT_EQ(status([] { OutputTo("/dev/null"); }), 0) << command << ReadFile(dir_ / "err");
    EXPECT_EQ(status([] { OutputTo("/dev/full"); }), 1) << command;
    EXPECT_NE(ReadFile(dir_ / "err").find("standard output: No space left"), std::string::npos) << command;
    EXPECT_EQ(status([] { ::close(STDOUT_FILENO); }), 1) << command;
    EXPECT_NE(ReadFile(dir_ / "err").find("standard output: Bad file descriptor"), std::string::npos) << command;
  }
}

// Whoever closes the pipe wants no more, as `head` does.
TEST_F(Cli, AReaderThatLeavesIsNoError) {
  const auto closed = [](bool ignored) {
    return [ignored] {
      int ends[2];
      if (::pipe(ends) != 0) ::_exit(97);
      ::close(ends[0]);
      ::dup2(ends[1], STDOUT_FILENO);
      if (ignored) std::signal(SIGPIPE, SIG_IGN);
    };
  };
  EXPECT_EQ(StatusOf({"--help"}, dir_ / "err", closed(false)), 128 + SIGPIPE);
  EXPECT_EQ(StatusOf({"--help"}, dir_ / "err", closed(true)), 0);
  EXPECT_EQ(ReadFile(dir_ / "err"), "");
}

// A command whose results go to files goes on; what it would have continued from stays until all is written.
TEST_F(Cli, WhatIsDoneOutlivesALostOutput) {
  const auto eval = [&](const std::function<void()>& prepare) {
    return StatusOf({"eval", "--threads", "1", "--model", Path("model"), "--tasks", "piqa", "--data", EvalData(),
                     "--quiet", "--json", Path("e.json"), "--journal", Path("j")},
                    dir_ / "err", prepare);
  };
  EXPECT_EQ(eval([] { OutputTo("/dev/full"); }), 1);
  EXPECT_TRUE(fs::exists(dir_ / "j"));
  EXPECT_NE(ReadFile(dir_ / "err").find("the same command goes on"), std::string::npos);
  fs::remove(dir_ / "e.json");
  EXPECT_EQ(eval([] {
              int ends[2];
              if (::pipe(ends) != 0) ::_exit(97);
              ::close(ends[0]);
              ::dup2(ends[1], STDOUT_FILENO);
            }),
            0);
  EXPECT_TRUE(ReadJson("e.json").is_object());
  EXPECT_FALSE(fs::exists(dir_ / "j"));
}

// A file that is cut short while it is mapped ends the program with a message, and leaves nothing behind.
TEST_F(Cli, AMappedFileThatIsCutShortIsReported) {
  const fs::path weights = dir_ / "model/model.safetensors";
  const pid_t child = Start({"generate", "--model", Path("model"), "--threads", "1", "--prompts",
                             Path("calibration.txt"), "--max-tokens", "8", "--out", Path("out.jsonl")},
                            dir_ / "stdout", dir_ / "stderr");
  while (!fs::exists(dir_ / "out.jsonl.journal") && !Ended(child)) ::usleep(200);
  fs::resize_file(weights, 4096);
  const int status = Wait(child);
  if (status == 0) GTEST_SKIP() << "it was done before";
  EXPECT_EQ(status, 1) << ReadFile(dir_ / "stderr");
  EXPECT_NE(ReadFile(dir_ / "stderr").find("cut short"), std::string::npos) << ReadFile(dir_ / "stderr");
}

// No file of the program takes the number of the closed stream and gets what is printed.
TEST_F(Cli, AClosedOutputDoesNotEndUpInAFile) {
  StatusOf({"ppl", "--model", Path("model"), "--text", Path("heldout.txt"), "--threads", "1", "--json", Path("p.json")},
           dir_ / "err", [] { ::close(STDOUT_FILENO); });
  EXPECT_TRUE(ReadJson("p.json").is_object());
}

TEST_F(Cli, APipeInThePlaceOfAFileIsRefused) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_FAILS(Command("eval", {"--tasks", "piqa", "--data", EvalData(), "--quiet", "--journal", Path("pipe")}), 1,
               "pipe: not a regular file");
  EXPECT_FAILS(Command("sweep", {"--calib", Path("calibration.txt:16x64"), "--text", Path("heldout.txt"), "--quiet",
                                 "--prune", "layers=2", "--lra", "2", "--journal", Path("pipe")}),
               2, "a pipe that no program reads");
  EXPECT_FAILS(Command("ppl", {"--text", Path("pipe"), "--quiet"}), 1, "a pipe into which no program writes");
  EXPECT_FAILS(Command("ppl", {"--text", Path("heldout.txt"), "--quiet", "--json", Path("pipe")}), 2,
               "a pipe that no program reads");
}

// A changed digit of a score is named, and its items are scored again to the same bits.
TEST_F(Cli, ADamagedJournalIsNotBelieved) {
  WriteText(dir_ / "rows.jsonl", PiqaRows(600));
  const auto arguments = [&](const std::string& items) {
    return std::vector<std::string>{"eval",      "--model", Path("model"), "--threads", "1",
                                    "--quiet",   "--tasks", "piqa",        "--data",    "piqa=" + Path("rows.jsonl"),
                                    "--journal", Path("j"), "--items",     Path(items)};
  };
  ASSERT_EQ(Call(arguments("whole")).status, 0);
  const auto text = [&] { return fs::exists(dir_ / "j") ? ReadFile(dir_ / "j") : ""; };
  const auto lines = [&] {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  };
  int status = 0;
  for (int attempt = 0; status != 128 + SIGKILL; ++attempt) {
    ASSERT_LT(attempt, 50);
    const pid_t child = Start(arguments("killed"), dir_ / "stdout", dir_ / "stderr");
    while (lines() < 4 && !Ended(child)) ::usleep(200);
    ::kill(child, SIGKILL);
    status = Wait(child);
  }
  std::string journal = text();
  const size_t digit = journal.find_first_of("123456789", journal.find("scores"));
  journal[digit] = journal[digit] == '1' ? '2' : '1';
  WriteText(dir_ / "j", journal);
  const Outcome resumed = Call(arguments("killed"));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("j:1: the checksum of the line is wrong; its items are scored again"), std::string::npos)
      << resumed.err;
  EXPECT_EQ(ReadFile(dir_ / "killed"), ReadFile(dir_ / "whole"));
  for (const auto& entry : fs::directory_iterator(dir_))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

// A job that meets a NaN says how to find it, and the option that it names finds it.
TEST_F(Cli, AWeightThatIsNotANumberIsNamed) {
  std::string bytes = ReadFile(dir_ / "model/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof(nan), &nan, sizeof(nan));
  WriteText(dir_ / "model/model.safetensors", bytes);
  EXPECT_FAILS(Run({"--prune", "bi:1", "--json", Path("r.json")}), 1, "--check-weights names a weight");
  EXPECT_FALSE(fs::exists(dir_ / "r.json"));
  const Outcome checked = Run({"--prune", "bi:1", "--check-weights"});
  EXPECT_EQ(checked.status, 1);
  EXPECT_NE(checked.err.find(": tensor "), std::string::npos) << checked.err;
  EXPECT_NE(checked.err.find("is nan"), std::string::npos) << checked.err;
}

#if !defined(__SANITIZE_ADDRESS__)
// Under a limit on its address space, a command works or says what is missing. It neither hangs nor ends by a signal,
// and leaves no part of an output. Below some 70 MB the libraries of the program cannot be loaded.
TEST_F(Cli, LittleMemoryIsAnErrorAtEveryLimit) {
  const std::vector<std::string> run = {"run",         "--model",
                                        Path("model"), "--threads",
                                        "2",           "--quiet",
                                        "--prune",     "bi:2",
                                        "--lra",       "4",
                                        "--calib",     Path("calibration.txt:16x64"),
                                        "--text",      Path("heldout.txt"),
                                        "--prompt",    "the",
                                        "--save",      Path("out"),
                                        "--json",      Path("out.json")};
  bool worked = false, failed = false;
  std::string not_loaded, crashed_before_main;  // the limits at which the program did not come to run, in MB
  for (const rlim_t megabytes : {80, 100, 120, 150, 200, 250, 300, 400, 600, 1200}) {
    fs::remove_all(dir_ / "out");
    fs::remove(dir_ / "out.json");
    fs::remove(dir_ / "started");
    const int status = StatusOf(run, dir_ / "err", [&] {
      OutputTo("/dev/null");
      ::setenv("LD_PRELOAD", SHIFTRT_FAILING_CALLS, 1);
      ::setenv("SHIFTRT_STARTED", Path("started").c_str(), 1);
      const rlimit memory = {megabytes * 1000000, megabytes * 1000000};
      const rlimit seconds = {60, 60};  // CPU time: a command that spins is killed
      ::setrlimit(RLIMIT_CPU, &seconds);
      ::setrlimit(RLIMIT_AS, &memory);
    });
    const std::string said = ReadFile(dir_ / "err");
    if (status == 127) {  // the system cannot load the program into so little
      not_loaded += fmt::format(" {}", megabytes);
      continue;
    }
#if defined(SHIFTRT_HAVE_CUDA)
    // The CUDA runtime that is linked into the program registers its kernels before main() begins, and crashes where it
    // finds no memory for them. Under a limit, main() begins twice: the program starts itself again with one thread for
    // OpenBLAS.
    if (status == 128 + SIGSEGV && megabytes <= 300 &&
        (!fs::exists(dir_ / "started") || fs::file_size(dir_ / "started") < 2)) {
      crashed_before_main += fmt::format(" {}", megabytes);
      continue;
    }
#endif
    if (status == 0) {
      worked = true;
      EXPECT_TRUE(fs::exists(dir_ / "out/shiftrt.json")) << megabytes;
      continue;
    }
    failed = true;
    EXPECT_EQ(status, 1) << megabytes << " MB: " << said;
    EXPECT_TRUE(said.find("out of memory") != said.npos || said.find("Cannot allocate memory") != said.npos)
        << megabytes << " MB: " << said;
    EXPECT_FALSE(fs::exists(dir_ / "out.json")) << megabytes;
    for (const auto& entry : fs::recursive_directory_iterator(dir_))
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
  EXPECT_TRUE(worked);
  EXPECT_TRUE(failed);
  if (!not_loaded.empty())
    std::printf("limits at which the system did not load the program:%s MB\n", not_loaded.c_str());
  if (!crashed_before_main.empty())
    GTEST_SKIP() << "at these limits the CUDA runtime crashed before main() began:" << crashed_before_main
                 << " MB; at the others the test has passed";
}
#endif

}  // namespace
}  // namespace shiftrt
