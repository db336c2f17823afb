// SPDX-License-Identifier: Apache-2.0
// Malformed files of the program's own: saved sums, journals, checkpoints of a training; and messages between
// processes.
#include <deque>

#include "api/sweep_journal.h"
#include "eval/journal.h"
#include "runtime/checked_lines.h"
#include "runtime/messages.h"
#include "runtime/random.h"
#include "shift/fit/fit.h"
#include "shift/sums/gram_file.h"
#include "tests/hostile/hostile.h"
#include "train/checkpoint.h"

namespace shiftrt::hostile {
namespace {

template <typename T>
Matrix<T> Noise(int64_t rows, int64_t cols, Random& random) {
  Matrix<T> m(rows, cols);
  for (T& x : m.span()) x = static_cast<T>(random.Uniform() - 0.5);
  return m;
}

SavedSums Sums(uint64_t seed, int64_t layers = 2, int64_t hidden = 3) {
  Random random(seed);
  SavedSums set;
  set.origin = {"0123456789abcdef", "float32", "plain", "text \xC3\xA9", {"a1", "a2", "a3"}, {"b1"}};
  set.sums.fit_batches = set.fit_total = 3;
  set.sums.heldout_batches = set.heldout_total = 1;
  set.scores["bi"] = {random.Uniform(), 1.0 / 3, 1e-300};
  const auto sums = [&](int64_t tokens) {
    return RidgeSums::FromSums(Noise<double>(hidden + 1, hidden + 1, random), Noise<double>(hidden + 1, hidden, random),
                               random.Uniform(), tokens);
  };
  for (int64_t layer = 0; layer < layers; ++layer)
    set.sums.sites.emplace_back(Site{.layer = layer + 1}, sums(64), sums(16));
  return set;
}

std::string Described(const SavedSums& set) {
  std::string text =
      fmt::format("{} {} {} {} {} {} of {}", set.origin.model, set.origin.dtype, set.origin.settings, set.origin.source,
                  fmt::join(set.origin.fit_samples, ","), set.sums.fit_batches, set.fit_total);
  for (const auto& [criterion, scores] : set.scores) text += fmt::format(" {} {}", criterion, fmt::join(scores, " "));
  for (const SiteSums& site : set.sums.sites)
    for (const RidgeSums* sums : {&site.fit, &site.heldout}) {
      const Matrix<double> gram = sums->Gram();
      text += fmt::format(" {} {} {} {}", site.site.Name(), sums->tokens(), fmt::join(gram.span(), " "),
                          fmt::join(sums->Cross().span(), " "));
    }
  return text;
}

const Reader kSums = {[](const fs::path& directory) { WriteSums(directory / "sums", Sums(1)); },
                      [](const fs::path& directory) { return Described(ReadSums(directory / "sums")); }};

TEST(HostileState, Sums) {
  static constexpr const char* kFile = "sums";
  CheckReader(
      kSums,
      {{"an empty file", Text(kFile, ""), {kFile}},
       {"a file that ends in its header", Cut(kFile, 0.2), {kFile}},
       {"a file that ends in its data", Cut(kFile, 0.9), {kFile}},
       {"another format", Replaced(kFile, "shiftrt-gram", "shiftrt-gran"), {kFile, "not a file of calibration sums"}},
       {"another version", Replaced(kFile, R"(\"version\":2)", R"(\"version\":8)"), {kFile, "version 8"}},
       {"another model", Replaced(kFile, "0123456789abcdef", "0123456789abcdee"), {kFile, "checksum"}},
       {"another number of tokens", Replaced(kFile, "[64,16]", "[65,16]"), {kFile, "checksum"}},
       {"another number of batches",
        Replaced(kFile, R"(\"fit_batches\":[3,3])", R"(\"fit_batches\":[3,4])"),
        {kFile, "checksum"}},
       {"more batches than there are",
        Replaced(kFile, R"(\"fit_batches\":[3,3])", R"(\"fit_batches\":[4,3])"),
        {kFile, "fit_batches"}},
       {"a negative number of tokens", Replaced(kFile, "[64,16]", "[-4,16]"), {kFile, "token counts"}},
       {"another layer", Replaced(kFile, R"(\"layers\":[1,2])", R"(\"layers\":[1,3])"), {kFile, "layer.3"}},
       {"layers out of order", Replaced(kFile, R"(\"layers\":[1,2])", R"(\"layers\":[2,1])"), {kFile, "layers"}},
       {"another score", Replaced(kFile, "1e-300", "2e-300"), {kFile, "checksum"}},
       {"a changed bit in a Gram", Flipped(kFile, 700), {kFile, "checksum"}},
       {"a NaN", NanAtTheEnd<double>(kFile), {kFile, "nan"}}});
}

TEST(HostileState, ValidSumsSurvive) {
  const TemporaryDirectory directory;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SavedSums sums = Sums(seed, 1 + static_cast<int64_t>(seed % 4), 1 + static_cast<int64_t>(seed % 5));
    WriteSums(directory.path() / "sums", sums);
    EXPECT_EQ(Described(ReadSums(directory.path() / "sums")), Described(sums));
  }
}

TrainingState State(Random& random, int64_t count, int64_t steps) {
  TrainingState state;
  for (auto* values : {&state.values, &state.first, &state.second, &state.best})
    for (int64_t i = 0; i < count; ++i) values->push_back(static_cast<float>(random.Uniform() - 0.5));
  for (int64_t i = 0; i < steps; ++i) {
    state.history.losses.push_back(random.Uniform());
    state.history.gradient_norms.push_back(random.Uniform());
  }
  state.history.validations = {{0, random.Uniform()}, {steps, random.Uniform()}};
  state.history.tokens = random.Below(1'000'000);
  state.history.seconds = random.Uniform();
  return state;
}

std::string Described(const TrainingState& state) {
  const TrainingHistory& history = state.history;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {}", fmt::join(state.values, " "), fmt::join(state.first, " "),
                  fmt::join(state.second, " "), fmt::join(state.best, " "), fmt::join(history.losses, " "),
                  fmt::join(history.gradient_norms, " "), history.tokens, history.seconds);
  for (const auto& [step, loss] : history.validations) text += fmt::format(" {} {}", step, loss);
  return text;
}

const TrainingSettings kSettings = {{"model", "abc"}, {"rate", "0.001"}};

TEST(HostileState, TrainingCheckpoint) {
  static constexpr const char* kFile = "training";
  const Reader reader = {
      [](const fs::path& directory) {
        Random random(3);
        const TrainingState state = State(random, 5, 4);
        CheckpointFile(directory / kFile, kSettings)
            .Write({state.values, state.first, state.second, state.best}, state.history);
      },
      [](const fs::path& directory) { return Described(*CheckpointFile(directory / kFile, kSettings).Read(5)); }};
  // A point takes the place of the third digit, so that the length of the header stays as it is.
  const Change tokens_with_a_fraction = [](const fs::path& directory) {
    constexpr std::string_view kTokens = R"(\"tokens\":)";
    std::string bytes = ReadFile(directory / kFile);
    bytes.at(bytes.find(kTokens) + kTokens.size() + 2) = '.';
    WriteText(directory / kFile, bytes);
  };
  CheckReader(reader, {{"an empty file", Text(kFile, ""), {kFile}},
                       {"a file that ends early", Cut(kFile, 0.9), {kFile}},
                       {"another format",
                        Replaced(kFile, "training checkpoint 2", "training checkpoint 1"),
                        {kFile, "training checkpoint 1"}},
                       {"another setting", Replaced(kFile, "0.001", "0.002"), {kFile, "its rate is \"0.002\""}},
                       {"another number of tokens", Replaced(kFile, R"(\"tokens\":)", R"(\"tokens\":1)"), {kFile}},
                       {"a number of tokens that is no integer", tokens_with_a_fraction, {kFile, "not an integer"}},
                       {"no validations", Replaced(kFile, "validations", "validationz"), {kFile, "progress"}},
                       {"a tensor of another name",
                        Replaced(kFile, "second_moments", "secont_moments"),
                        {kFile, "second_moments is missing"}},
                       {"a tensor of another length", Replaced(kFile, "\"shape\":[5]", "\"shape\":[6]"), {kFile}},
                       {"a changed bit in a value", Flipped(kFile, 3), {kFile, "checksum"}}});
}

TEST(HostileState, ValidTrainingCheckpointsSurvive) {
  const TemporaryDirectory directory;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const int64_t count = random.Below(40);
    const TrainingState state = State(random, count, random.Below(20));
    const CheckpointFile file(directory.path() / "training", kSettings);
    file.Write({state.values, state.first, state.second, state.best}, state.history);
    EXPECT_EQ(Described(*file.Read(count)), Described(state));
  }
}

// A journal never refuses the work: a bad line is named, and its work is done again.
template <typename Found>
void CheckJournal(const std::vector<std::string>& texts, const Found& found) {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "journal";
  {
    LineAppender lines(file);
    for (const std::string& text : texts) lines.Add(text);
  }
  const std::string good = ReadFile(file);
  const int64_t all = std::ssize(texts);
  EXPECT_EQ(found(file), std::pair(all, int64_t{0}));
  for (size_t at = 0; at < good.size(); at += 3) {
    std::string changed = good;
    changed[at] ^= 2;
    WriteText(file, changed);
    const auto [known, bad] = found(file);
    EXPECT_LT(known, all) << at;
    EXPECT_GE(bad, 1) << at;
  }
  for (size_t size = 0; size + 1 < good.size(); size += 5) {  // a line that breaks off is not called bad
    WriteText(file, good.substr(0, size));
    const auto [known, bad] = found(file);
    EXPECT_LT(known, all) << size;
    EXPECT_EQ(bad, 0) << size;
  }
  for (const char* const text : {"", "{}", "[]", "3", "{\"key\": 1}", "{\"key\": \"key\"}"}) {
    fs::remove(file);
    LineAppender(file).Add(text);
    EXPECT_EQ(found(file).first, 0) << text;
    EXPECT_EQ(found(file).second, 1) << text;
  }
}

TEST(HostileState, JournalOfAnEvaluation) {
  CheckJournal({R"({"batch":0,"key":"piqa","scores":[[-1.25,true],[-0.3333333333333333,false]]})",
                R"({"batch":7,"key":"boolq","scores":[]})"},
               [](const fs::path& file) {
                 const Journal journal(file);
                 return std::pair(journal.batches(), std::ssize(journal.bad()));
               });
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "journal";
  for (const char* batch : {"1e84", "-1e300", "9223372036854775808", "0.5", "null"})
    LineAppender(file).Add(fmt::format(R"({{"batch":{},"key":"piqa","scores":[]}})", batch));
  {
    const Journal journal(file);
    EXPECT_EQ(journal.batches(), 0);
    EXPECT_EQ(std::ssize(journal.bad()), 5);
  }
  fs::remove(file);
  for (const char* reply : {"1", "null", "\"1\"", "{\"a\": 1}", "[1.5]", "[-1]", "[2147483648]", "[1e84]", "[[1]]"})
    LineAppender(file).Add(fmt::format(R"({{"key":"gsm8k","reply":{}}})", reply));
  for (const char* key : {"1", "null", "[]"}) LineAppender(file).Add(fmt::format(R"({{"key":{},"reply":[1]}})", key));
  LineAppender(file).Add(R"({"reply":[1]})");
  const Journal journal(file);
  EXPECT_EQ(journal.replies(), 0);
  EXPECT_EQ(std::ssize(journal.bad()), 13);
}

TEST(HostileState, JournalOfASweep) {
  const std::string cell =
      R"({"adapter_parameters":256,"chosen":"","corrected":[7.5,null,null],"key":"key","original":[5.5,0.5,0.1],)"
      R"("pruned":[9.5,0.25,0.1],"r2_fit":0.5,"r2_heldout":null,"removed":[1,"2.attn"],"samples":16,"seed":SEED,)"
      R"("settings":"bi:2 lra rank 4","tokens":1024})";
  const auto with_seed = [&](const char* seed) { return std::string(cell).replace(cell.find("SEED"), 4, seed); };
  CheckJournal({with_seed("0"), with_seed("1")}, [](const fs::path& file) {
    const SweepJournal journal(file, "key");
    return std::pair(journal.cells(), std::ssize(journal.bad()));
  });
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "journal";
  int64_t wrong = 0;
  for (const char* seed : {"1e84", "-1", "0.5"}) {
    LineAppender(file).Add(with_seed(seed));
    ++wrong;
  }
  for (const char* name : {"samples", "tokens", "adapter_parameters"})
    for (const char* number : {"1e84", "-1e300", "9223372036854775808", "0.5"}) {
      Json changed = Json::parse(with_seed("0"));
      changed[name] = Json::parse(number);
      LineAppender(file).Add(changed.dump());
      ++wrong;
    }
  const SweepJournal journal(file, "key");
  EXPECT_EQ(journal.cells(), 0);
  EXPECT_EQ(std::ssize(journal.bad()), wrong);
}

TEST(HostileState, ValidJournalsSurvive) {
  const TemporaryDirectory directory;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    std::vector<Score> scores(random.Below(9));
    for (Score& score : scores) score = {-100 * random.Uniform(), random.Below(2) == 1};
    const fs::path file = directory.path() / fmt::format("journal{}", seed);
    Journal(file).Add("a key \xC3\xA9\n\"", 3, scores);
    std::vector<int32_t> tokens(random.Below(9));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(1 << 30));
    Journal(file).AddReply("another key", tokens);
    const Journal journal(file);
    const std::vector<Score>* found = journal.Find("a key \xC3\xA9\n\"", 3);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->size(), scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ((*found)[i].log_likelihood, scores[i].log_likelihood);
      EXPECT_EQ((*found)[i].greedy, scores[i].greedy);
    }
    ASSERT_NE(journal.FindReply("another key"), nullptr);
    EXPECT_EQ(*journal.FindReply("another key"), tokens);
    EXPECT_EQ(journal.FindReply("key"), nullptr);
  }
}

// The value of a type in a message, and the message in which 8 bytes at a time are those of a number that is out of
// range. The result is the value of other bytes, or an Error; never an allocation of what the message does not have.
template <typename T>
void CheckMessage(const T& value) {
  Packer packer;
  Write(packer, value);
  const Bytes message = packer.Take();
  const auto read = [](std::span<const std::byte> bytes) {
    T found{};
    Unpacker in(bytes);
    Read(in, found);
    Packer again;
    Write(again, found);
    return again.Take();
  };
  EXPECT_EQ(read(message), message);
  for (size_t size = 0; size < message.size(); ++size)
    EXPECT_NE(Refusal([&] { read(std::span(message).first(size)); }).find("a message between processes"),
              std::string::npos)
        << size << " of " << message.size() << " bytes";
  for (size_t at = 0; at + 8 <= message.size(); at += 8)
    for (const uint64_t number : {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 33}) {
      Bytes changed = message;
      std::memcpy(changed.data() + at, &number, sizeof(number));
      const std::string refusal = Refusal([&] { read(changed); });
      EXPECT_TRUE(refusal.empty() || refusal.find("a message between processes") != std::string::npos) << refusal;
    }
}

TEST(HostileState, Messages) {
  Random random(5);
  CheckMessage(std::string("some words"));
  CheckMessage(std::vector<std::string>{"a", "", "bc"});
  CheckMessage(std::vector<std::vector<double>>{{1, 2}, {}, {3}});
  CheckMessage(Noise<float>(2, 3, random));
  Lra lra;
  lra.p = Noise<float>(4, 2, random);
  lra.q = Noise<float>(2, 4, random);
  lra.b = Noise<float>(1, 4, random);
  CheckMessage(lra);
}

}  // namespace
}  // namespace shiftrt::hostile
