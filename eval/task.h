// SPDX-License-Identifier: Apache-2.0
// What an evaluation task is: where its rows are, and how a row becomes prompts. Tasks know nothing of models.
// Texts are those of EleutherAI's lm-evaluation-harness 0.4, whose numbers ours are to equal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/rows.h"

namespace shiftrt {

// A row as its task puts it. A prompt is `contexts[i]` continued by " " + `answers[i]`, where one of the two may be the
// same for every choice and then stands once.
struct Example {
  std::string preamble = {};  // once, before the shots
  std::vector<std::string> contexts;
  std::vector<std::string> answers;
  int64_t gold = 0;       // the right choice
  std::string code = {};  // the beginning of a program that the reply continues, of a task whose replies are run
};

enum class TaskKind {
  kChoice,  // the likeliest answer is the model's: acc, acc_norm, acc_bytes
  kWord,    // the one answer should be what the model would write: acc, perplexity
  kPages,   // the one answer, a document, is read from its beginning: perplexity by its words and bytes
  kReply,   // the model continues the context; metrics say whether that is right by the one answer
};

enum class Shots {
  kNone,          // the reference's prompt has no place for them
  kFirst,         // the first of the shot rows of the same subject
  kDrawn,         // drawn at random for every row, as the reference draws them
  kDrawnSparing,  // the same, drawing one more than is used (the reference does where a task has no test split)
};

// Files are named relative to the data directory, with wildcards, first match first; a final .gz or .zst may follow,
// and a Parquet file may stand for one of JSON lines.
struct Task {
  std::string name;
  std::string alias = {};  // its name in other programs, where that is another
  std::string title;       // as people write it
  TaskKind kind = TaskKind::kChoice;
  std::string metric;  // the one quoted (and mixed into the seven-task mean, as the paper does)
  std::vector<std::string> metrics;
  int64_t rows = 0;        // rows in the whole split
  std::string repository;  // the name of the data set on the Hugging Face hub
  // CONFIGURATION/SPLIT there, with wildcards: the hub converts every data set to Parquet, in files
  // CONFIGURATION/SPLIT/0000.parquet of the revision kHubRevision.
  std::string hub_rows, hub_shot_rows = {};
  std::vector<std::string> files;
  Shots shots = Shots::kNone;
  std::vector<std::string> shot_files = {};
  std::string shots_made_by = {};         // the script that makes the file of shots, where no data set has them
  std::vector<std::string> columns = {};  // the columns of a CSV file without a header
  bool by_subject = false;                // one file per subject; the column `subject` is then the file's name
  Example (*read)(const Row&) = nullptr;
  std::string sample;  // a row, for the hash of the template and for people to look at

  // A task of replies has the following, too. A reply ends before the first text of `stop` that it contains.
  std::vector<std::string> stop = {};
  int64_t max_tokens = 256;  // a reply is no longer; this is the reference's default
  int64_t usual_shots = 0;   // shots where the user names no number
  // Says whether `reply` is right by a metric; `answer` is that of the example.
  bool (*right)(std::string_view metric, std::string_view reply, std::string_view answer) = nullptr;
  // Or else the program in Python, made of Example::code, a reply and the answer, that passes if the reply is right.
  std::string (*program)(const std::string& code, std::string_view reply, const std::string& answer) = nullptr;
};

inline constexpr const char* kHubRevision = "refs/convert/parquet";

// All tasks, in the order of --help.
const std::vector<Task>& Tasks();
// By name or alias; nullptr if there is none.
const Task* FindTask(std::string_view name);
// The names of all tasks, with commas between them.
std::string TaskNames();
// "boolq,piqa", "paper7" (the paper's seven), "small4" (the headline suites of small models) or "all" (all but those of
// replies, which take much longer). Throws UsageError, listing what there is, for another name and for none.
std::vector<const Task*> ParseTasks(std::string_view names);

}  // namespace shiftrt
