// SPDX-License-Identifier: Apache-2.0
// Small jobs, one of each command that writes a result, for tests that disturb the program at every place.
#pragma once

#include <map>

#include "tests/tools/cli.h"

namespace shiftrt {

class Jobs : public Cli {
 protected:
  // The arguments of a command, with "OUT" in the place of its output.
  using Job = std::vector<std::string>;

  static Job With(Job job, const std::string& output) {
    std::replace(job.begin(), job.end(), std::string("OUT"), output);
    return job;
  }
  Job With(const Job& job, const char* output) const { return With(job, Path(output)); }

  // The bytes of an output: a file, or the files of a directory without those that hold times.
  std::map<std::string, std::string> Bytes(const std::string& output) const {
    std::map<std::string, std::string> bytes;
    if (fs::is_regular_file(dir_ / output)) bytes[""] = ReadFile(dir_ / output);
    if (!fs::is_directory(dir_ / output)) return bytes;
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / output))
      if (entry.is_regular_file() && entry.path().filename() != "shiftrt.json")
        bytes[fs::relative(entry.path(), dir_ / output).string()] = ReadFile(entry.path());
    return bytes;
  }

  void ExpectNoTemporaries(const std::string& where) const {
    for (const auto& entry : fs::recursive_directory_iterator(dir_))
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << where << ": " << entry.path();
  }

  // One job of each command, with so much text for the fits. Makes the models that they need.
  std::vector<Job> All(const std::string& samples = "16x64") {
    const std::string texts = " --calib " + Path("calibration.txt:" + samples) + " --text " + Path("heldout.txt");
    const auto job = [&](const std::string& command, const std::string& model, const std::string& more) {
      Job arguments = {command, "--model", Path(model)};
      if (command != "tokenize") arguments.insert(arguments.end(), {"--threads", "1"});
      if (command != "tokenize" && command != "generate" && command != "export") arguments.push_back("--quiet");
      const std::vector<std::string> words = Split(more);
      arguments.insert(arguments.end(), words.begin(), words.end());
      return arguments;
    };
    EXPECT_EQ(Run({"--prune", "layers=1,2", "--save", Path("saved")}).status, 0);
    EXPECT_EQ(Run({"--prune", "layers=1", "--correction", "none", "--save", Path("pruned")}).status, 0);
    return {job("tokenize", "model", "the-sea-was-calm"),
            job("generate", "model", "--prompt the --max-tokens 4"),
            job("ppl", "model", "--text " + Path("heldout.txt") + " --text-tokens 256"),
            job("run", "model", "--prune bi:2 --lra 4 --prompt the --max-tokens 4 --save OUT" + texts),
            job("run", "model",
                "--prune bi:1 --lra 4 --prompt the --max-tokens 4 --gram-layers all --save-gram OUT" + texts),
            job("sweep", "model", "--prune bi:2 --lra 2,4 --journal " + Path("journal") + " --csv OUT" + texts),
            job("eval", "model", "--tasks piqa,boolq --data " + EvalData() + " --items OUT"),
            job("finetune", "saved",
                "--calib " + Path("calibration.txt") +
                    " --length 32 --batch 4 --steps 6 --validation 4 --rate 0.01 --save OUT"),
            job("export", "pruned", "--format hf --save OUT")};
  }
};

}  // namespace shiftrt
