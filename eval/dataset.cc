// SPDX-License-Identifier: Apache-2.0
#include "eval/dataset.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "eval/files.h"
#include "eval/harness/python_random.h"
#include "eval/harness/text.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parquet.h"
#include "runtime/text.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxRowsBytes = uint64_t{512} << 20;  // the largest file of rows, decompressed
constexpr uint32_t kShotSeed = 1234;                     // the reference's default

struct Entry {
  Example example;
  std::string where, subject;
};

bool IsSplit(const std::string& name) {
  return name == "test" || name == "dev" || name == "val" || name == "validation" || name == "train";
}

// Removes the number that the Hugging Face hub gives to each file of a split: returns "test" for "test-00000-of-00001",
// which a hash may follow, and nothing for "0000".
std::string WithoutNumber(const std::string& name) {
  constexpr const char* kNumbered = "*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*";
  if (name.find_first_not_of("0123456789") == name.npos) return "";
  return ::fnmatch(kNumbered, name.c_str(), 0) == 0 ? name.substr(0, name.rfind("-of-") - 6) : name;
}

// Returns "anatomy" for mmlu/test/anatomy_test.csv.gz and mmlu/test/anatomy.parquet. If a Parquet file has the name of
// a split or only a number, its folder names the subject: anatomy/test/0000.parquet,
// anatomy/test-00000-of-00001.parquet.
std::string SubjectOf(const fs::path& file) {
  const fs::path plain = WithoutCompression(file);
  std::string name = plain.stem().string();
  if (IsParquet(plain)) {
    name = WithoutNumber(name);
    const fs::path folder = file.parent_path();
    if (name.empty() || IsSplit(name))
      return (IsSplit(folder.filename()) ? folder.parent_path() : folder).filename().string();
  }
  for (const char* split : {"_test", "_dev", "_val"})
    if (name.ends_with(split)) return name.substr(0, name.size() - std::string_view(split).size());
  return name;
}

// Where the answers are in a file of their own, one line per row (AI2's releases), they become the column `label`.
void AddLabels(const fs::path& file, std::vector<Row>& rows, std::string& hashed) {
  const fs::path labels = file.parent_path() / (WithoutCompression(file).stem().string() + "-labels.lst");
  if (rows.empty() || rows[0].Has("label") || rows[0].Has("answer") || !Exists(labels)) return;
  const std::string text = ReadText(labels, kMaxRowsBytes);
  hashed += text;
  size_t begin = 0;
  for (Row& row : rows) {
    Check(begin < text.size(), "{}: fewer lines than {} has rows", labels.string(), file.string());
    const size_t end = std::min(text.find('\n', begin), text.size());
    row.Set("label", std::string(Strip(std::string_view(text).substr(begin, end - begin))));
    begin = end + 1;
  }
  Check(begin >= text.size(), "{}: more lines than {} has rows", labels.string(), file.string());
}

Entry MakeEntry(const Task& task, Row row, const fs::path& file) {
  if (task.by_subject && !row.Has("subject")) row.Set("subject", SubjectOf(file));
  Example example = task.read(row);
  row.Require(example.gold < static_cast<int64_t>(std::max(example.contexts.size(), example.answers.size())),
              "the answer is none of the choices");
  return {std::move(example), row.where(), task.by_subject ? row.Text("subject") : ""};
}

// Every row of `files`, checked. Appends their bytes' hashes to `hashed`.
std::vector<Entry> ReadEntries(const Task& task, const std::vector<fs::path>& files, std::string& hashed) {
  std::vector<Entry> entries;
  for (const fs::path& file : files) {
    const std::string text = ReadText(file, kMaxRowsBytes);
    hashed += HashHex(text);
    std::vector<Row> rows = ParseRows(text, WithoutCompression(file), task.columns);
    AddLabels(file, rows, hashed);
    Check(!rows.empty(), "{}: no rows", file.string());
    for (Row& row : rows) entries.push_back(MakeEntry(task, std::move(row), file));
  }
  return entries;
}

// The first `limit` entries of each subject.
void Limit(int64_t limit, std::vector<Entry>& entries) {
  if (limit == 0) return;
  std::map<std::string, int64_t> seen;
  std::erase_if(entries, [&](const Entry& entry) { return ++seen[entry.subject] > limit; });
}

// The entries of `pool` that stand before each item, in its order.
class ShotSource {
 public:
  ShotSource(const Task& task, int64_t shots, const std::vector<Entry>& pool)
      : task_(task), shots_(shots), pool_(pool), random_(kShotSeed) {
    for (const Entry& entry : pool) by_subject_[entry.subject].push_back(&entry.example);
  }

  std::vector<const Example*> For(const Entry& entry) {
    if (shots_ == 0) return {};
    return task_.shots == Shots::kFirst ? First(entry.subject) : Drawn();
  }

 private:
  std::vector<const Example*> First(const std::string& subject) {
    const auto& rows = by_subject_[subject];
    Check(std::ssize(rows) >= shots_, "{}: {} shots, but {} has {}", task_.name, shots_,
          subject.empty() ? "the file of shots" : "subject " + subject, rows.size());
    return {rows.begin(), rows.begin() + shots_};
  }

  std::vector<const Example*> Drawn() {
    const int64_t draw = shots_ + (task_.shots == Shots::kDrawnSparing ? 1 : 0), rows = std::ssize(pool_);
    Check(rows >= draw, "{}: {} shots are drawn from at least {} rows, and there are {}", task_.name, shots_, draw,
          rows);
    std::vector<const Example*> examples;
    for (const int64_t index : random_.Sample(rows, draw)) examples.push_back(&pool_[index].example);
    examples.resize(shots_);
    return examples;
  }

  const Task& task_;
  const int64_t shots_;
  const std::vector<Entry>& pool_;
  std::map<std::string, std::vector<const Example*>> by_subject_;
  PythonRandom random_;
};

// The value of choice i, or the one value that all choices share.
const std::string& At(const std::vector<std::string>& texts, size_t i) { return texts[texts.size() == 1 ? 0 : i]; }

Item MakeItem(const Task& task, const Entry& entry, const std::vector<const Example*>& shots) {
  Item item{entry.where, entry.subject, {}, entry.example.gold, {}, {}, {}, {}, {}};
  if (task.kind == TaskKind::kPages) {
    const std::string& page = entry.example.contexts[0];
    item.prompts = {{"", entry.example.answers[0]}};
    item.units = {SplitWords(page)};
    item.bytes = {static_cast<int64_t>(page.size())};
    return item;
  }
  item.prompts = MakePrompts(entry.example, shots);
  if (task.kind == TaskKind::kReply) {
    item.answer = entry.example.answers[0];
    item.code = entry.example.code;
    return item;
  }
  // The reference divides by the length of what differs between the choices. If they share the answer, that is the
  // context.
  const bool shared = entry.example.contexts.size() > 1 && entry.example.answers.size() == 1;
  for (size_t i = 0; i < item.prompts.size(); ++i) {
    const std::string &answer = At(entry.example.answers, i), &choice = shared ? entry.example.contexts[i] : answer;
    item.units.push_back(CodePoints(choice));
    item.bytes.push_back(static_cast<int64_t>(choice.size()));
    item.answer_bytes.push_back(static_cast<int64_t>(answer.size()));
  }
  return item;
}

std::string TemplateHash(const Task& task) {
  const Entry entry = MakeEntry(task, Row(ParseJson(task.sample, task.name), task.name), "");
  const Item item =
      MakeItem(task, entry, task.shots == Shots::kNone ? std::vector<const Example*>{} : std::vector{&entry.example});
  std::string text;
  for (const Prompt& prompt : item.prompts) text += prompt.context + '\0' + prompt.continuation + '\0';
  return HashHex(text);
}

}  // namespace

std::vector<Prompt> MakePrompts(const Example& example, const std::vector<const Example*>& shots) {
  std::string before = example.preamble;
  for (const Example* shot : shots)
    before += At(shot->contexts, shot->gold) + " " + At(shot->answers, shot->gold) + "\n\n";
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < std::max(example.contexts.size(), example.answers.size()); ++i)
    prompts.push_back({before + At(example.contexts, i), " " + At(example.answers, i)});
  return prompts;
}

Dataset LoadDataset(const Task& task, const SuiteSettings& settings) {
  if (task.program != nullptr && !settings.allow_code)
    FailUsage(Field("allow_code"),
              "not given, and {} runs programs that the model writes: allow that (they run in isolation, as "
              "docs/evaluation.md says), or leave the task out",
              task.name);
  const int64_t wanted = settings.shots.value_or(task.usual_shots);
  if (wanted < 0) FailUsage(Field("shots"), "{} is below 0", wanted);
  if (settings.limit < 0) FailUsage(Field("limit"), "{} is below 0", settings.limit);
  if (wanted > 0 && task.shots == Shots::kNone) FailUsage(Field("shots"), "{} is evaluated without shots", task.name);
  Dataset dataset;
  dataset.task = &task;
  dataset.shots = wanted;
  dataset.files = FindTaskFiles(task, TaskRows::kItems, settings.data);
  std::string hashed;
  std::vector<Entry> entries = ReadEntries(task, dataset.files, hashed), pool;
  dataset.rows = std::ssize(entries);
  if (wanted > 0) pool = ReadEntries(task, FindTaskFiles(task, TaskRows::kShots, settings.data), hashed);
  Limit(settings.limit, entries);
  ShotSource shots(task, wanted, pool);
  for (const Entry& entry : entries) dataset.items.push_back(MakeItem(task, entry, shots.For(entry)));
  dataset.data_hash = HashHex(hashed);
  dataset.template_hash = TemplateHash(task);
  return dataset;
}

}  // namespace shiftrt
