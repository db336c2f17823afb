// SPDX-License-Identifier: Apache-2.0
#include "train/text.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/random.h"
#include "runtime/words.h"
#include "text/documents.h"
#include "text/mixture.h"

namespace shiftrt {

namespace {

// The share of a text that may be held out for validation, as a divisor.
constexpr int64_t kValidationShare = 5;

std::vector<int64_t> Shuffled(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (int64_t i = 0; i < count; ++i) std::swap(order[i], order[i + random.Below(count - i)]);
  return order;
}

// One text to learn from: a file, or the original model's answers to the prompts of a file.
struct Source {
  Source(const MixedText& text, const Tokenizer& tokenizer, const OwnAnswers* own)
      : file(ResolveText(text.name)), share(text.share), own(own) {
    if (own != nullptr) return;
    documents = Documents::Read(file);
    if (documents.size() == 1) whole = tokenizer.EncodeWithBos(documents.Text(0), file.string());
  }

  // Documents, answers or windows, of which the last is short.
  int64_t Places(int64_t length) const {
    if (own != nullptr) return std::ssize(own->answers);
    return documents.size() > 1 ? documents.size() : (std::ssize(whole) + length - 1) / length;
  }
  // The approximate number of sequences. Where long documents are divided, a document counts a sequence per 4 * length
  // bytes, because a token has about four.
  int64_t About(int64_t length, bool divided) const {
    if (own != nullptr || !divided || documents.size() == 1) return Places(length);
    return std::max(Places(length), static_cast<int64_t>(std::filesystem::file_size(file)) / (4 * length));
  }
  std::string Name() const {
    const std::string name = file.filename().string();
    return (own != nullptr ? "own answers to " + name : name) +
           (share > 0 && share < 1 ? fmt::format(" ({:.3g}%)", 100 * share) : "");
  }

  std::filesystem::path file;
  double share;           // its share of the tokens; 0: the documents of all texts come as they are mixed
  const OwnAnswers* own;  // null for a file
  Documents documents;
  std::vector<int32_t> whole;  // the tokens of a single document
  std::vector<int64_t> order;  // its documents, answers or windows, in the order in which they are taken
  size_t next = 0;             // the place in `order` of the next
  int64_t taken = 0;           // tokens
};

// The sequences of one or several texts, made one by one in a seeded order.
class Sequences {
 public:
  Sequences(const std::string& list, const FinetuneSettings& settings, const Tokenizer& tokenizer,
            std::span<const OwnAnswers> answers)
      : settings_(settings), tokenizer_(tokenizer) {
    size_t own = 0;
    for (const MixedText& text : MixtureIn(list)) {
      Check(!text.own || own < answers.size(), "{}: the answers to {} are missing", list, text.name);
      const Source& source = sources_.emplace_back(text, tokenizer, text.own ? &answers[own++] : nullptr);
      first_.push_back(first_.back() + source.Places(settings.length));
    }
    order_ = Shuffled(first_.back(), settings.seed);
    for (const int64_t place : order_) sources_[SourceOf(place)].order.push_back(place - first_[SourceOf(place)]);
    for (Source& source : sources_) readers_.emplace_back(source.documents, source.order);
  }

  // The approximate number of sequences; of texts with shares, of the one that has the fewest.
  int64_t about() const {
    int64_t sum = 0, least = INT64_MAX;
    for (const Source& source : sources_) {
      const int64_t count = source.About(settings_.length, settings_.divide);
      sum += count;
      least = std::min(least, count);
    }
    return HasShares() ? least : sum;
  }
  std::string names() const {
    return Joined([](const Source& source) { return source.Name(); });
  }
  std::string paths() const {
    return Joined([](const Source& source) { return source.file.string(); });
  }
  int64_t documents() const {
    return std::accumulate(sources_.begin(), sources_.end(), int64_t{0},
                           [](int64_t sum, const Source& source) { return sum + source.documents.size(); });
  }
  int64_t cut() const { return cut_; }
  int64_t left_out() const { return left_out_; }
  int64_t left_over() const { return left_over_; }  // tokens of documents of which enough was taken

  // Adds the next `count` sequences, or all that are left where `count` is negative; returns how many. What is left of
  // a document whose beginning is taken is never taken: the next call is for another purpose.
  int64_t Take(int64_t count, TrainingText& to) {
    const int64_t before = to.sequences();
    const auto enough = [&] { return count >= 0 && to.sequences() - before >= count; };
    while (!enough()) {
      const std::optional<size_t> from = NextSource();
      if (!from) break;
      const int64_t tokens = std::ssize(to.tokens);
      if (!AddFrom(*from, enough, to)) ++left_out_;
      sources_[*from].taken += std::ssize(to.tokens) - tokens;
    }
    return to.sequences() - before;
  }

 private:
  // The number of the source that a place in the order belongs to.
  size_t SourceOf(int64_t place) const {
    return std::upper_bound(first_.begin(), first_.end(), place) - first_.begin() - 1;
  }
  template <typename Name>
  std::string Joined(const Name& name) const {
    std::string joined;
    for (const Source& source : sources_) joined += (joined.empty() ? "" : ", ") + name(source);
    return joined;
  }
  bool HasShares() const { return sources_.front().share > 0; }

  // The source of the next sequence: with shares, the one that is furthest behind its share. Nothing if it has no more.
  std::optional<size_t> NextSource() {
    if (!HasShares()) {
      if (next_ == std::ssize(order_)) return std::nullopt;
      return SourceOf(order_[next_++]);
    }
    const auto lag = [](const Source& source) { return static_cast<double>(source.taken) / source.share; };
    const auto behind = std::min_element(sources_.begin(), sources_.end(),
                                         [&](const Source& a, const Source& b) { return lag(a) < lag(b); });
    if (behind->next == behind->order.size()) return std::nullopt;
    return behind - sources_.begin();
  }

  // Adds the next sequences of a source. Returns false if they have nothing to predict.
  template <typename Enough>
  bool AddFrom(size_t from, const Enough& enough, TrainingText& to) {
    Source& source = sources_[from];
    const int64_t place = source.order[source.next++];
    if (source.own != nullptr) return AddAnswer(source.own->answers[place], to);
    if (source.documents.size() > 1) return AddDocument(source, readers_[from].Next(), enough, to);
    return AddWindow(source, place, to);
  }

  bool AddAnswer(const OwnAnswer& answer, TrainingText& to) const {
    to.Add(answer.tokens, settings_.train_on_inputs ? 1 : answer.prompt);
    return true;
  }

  bool AddWindow(const Source& source, int64_t window, TrainingText& to) const {
    std::span<const int32_t> tokens = std::span(source.whole).subspan(window * settings_.length);
    tokens = tokens.first(std::min<int64_t>(std::ssize(tokens), settings_.length));
    if (tokens.size() < 2) return false;
    to.Add(tokens, 1);
    return true;
  }

  template <typename Enough>
  bool AddDocument(const Source& source, const Documents::Document& document, const Enough& enough, TrainingText& to) {
    const std::string file = source.file.string();
    const bool row = document.prompt > 0;
    std::vector<int32_t> tokens = tokenizer_.EncodeWithBos(document.text, file);
    int64_t first_target = 1;
    if (row) {
      if (tokenizer_.eos_token() >= 0) tokens.push_back(tokenizer_.eos_token());
      // As alpaca-lora counts them: the tokens of the prompt alone, so that one that spans its end belongs to it.
      if (!settings_.train_on_inputs)
        first_target = std::ssize(tokenizer_.EncodeWithBos(std::string_view(document.text).substr(0, document.prompt)));
    }
    // The answer of a row does not follow from a part of its prompt.
    const bool divided = settings_.divide && !row;
    if (std::ssize(tokens) > settings_.length && !divided) {
      tokens.resize(settings_.length);
      ++cut_;
    }
    first_target = std::max<int64_t>(first_target, 1);
    if (first_target >= std::ssize(tokens)) return false;
    std::span<const int32_t> left = tokens;
    while (left.size() > 1 && !enough()) {
      const std::span<const int32_t> sequence = left.first(std::min<size_t>(left.size(), settings_.length));
      to.Add(sequence, first_target);
      left = left.subspan(sequence.size());
    }
    if (left.size() > 1) left_over_ += std::ssize(left);
    return true;
  }

  const FinetuneSettings& settings_;
  const Tokenizer& tokenizer_;
  std::vector<Source> sources_;
  std::vector<Documents::InOrder> readers_;  // one for the documents of each source
  std::vector<int64_t> first_ = {0};  // the first place of each source in the order before it is shuffled; and the end
  std::vector<int64_t> order_;
  int64_t next_ = 0, cut_ = 0, left_out_ = 0, left_over_ = 0;
};

std::string HashOf(const TrainingText& text) {
  return HashHex(std::as_bytes(std::span(text.tokens))) + HashHex(std::as_bytes(std::span(text.offsets))) +
         HashHex(std::as_bytes(std::span(text.first_targets)));
}

}  // namespace

int64_t TrainingText::targets() const {
  return std::ssize(tokens) - std::accumulate(first_targets.begin(), first_targets.end(), int64_t{0});
}

void TrainingText::Add(std::span<const int32_t> sequence, int64_t first_target) {
  Check(first_target >= 1 && first_target < std::ssize(sequence), "a sequence of {} tokens with its first target at {}",
        sequence.size(), first_target);
  tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  offsets.push_back(std::ssize(tokens));
  first_targets.push_back(first_target);
}

TrainingTexts LoadTrainingTexts(const FinetuneSettings& settings, const Tokenizer& tokenizer,
                                std::span<const OwnAnswers> answers) {
  Check(settings.length >= 2, "sequences of {} tokens, in which nothing is predicted", settings.length);
  Sequences sequences(settings.text, settings, tokenizer, answers);
  TrainingTexts texts;
  if (settings.validation_text.empty()) {
    // If samples are asked for, they come before the validation.
    const int64_t share = std::max<int64_t>(sequences.about() / kValidationShare, 1);
    const int64_t wanted = std::min(settings.validation, share);
    Check(sequences.Take(wanted, texts.validation) == wanted && (wanted > 0 || settings.validation == 0),
          "{}: {} of 2 tokens or more, of which {} would be held out for validation; give a longer text, or "
          "another text for validation",
          sequences.paths(), Counted(texts.validation.sequences(), "sequence"), wanted);
  } else {
    if (HasOwnTexts(settings.validation_text))
      FailUsage(Field("validation_text"),
                "{}: a training on own answers holds some of them out; give a number, or a file",
                settings.validation_text);
    Sequences others(settings.validation_text, settings, tokenizer, {});
    Check(others.Take(settings.validation, texts.validation) > 0, "{}: no sequence with a token to predict",
          others.paths());
  }
  const int64_t wanted = settings.samples > 0 ? settings.samples : -1;
  const int64_t taken = sequences.Take(wanted, texts.training);
  Check(taken > 0, "{}: no sequence with a token to predict is left besides the {} for validation; give a longer text",
        sequences.paths(), texts.validation.sequences());
  if (taken < settings.samples)
    FailUsage(Field("samples"),
              "{}: {} sequences to learn from, besides {} for validation, and {} are asked for; ask for {} or fewer",
              sequences.paths(), taken, texts.validation.sequences(), settings.samples, taken);

  texts.source = fmt::format("{}, {} sequences of at most {} tokens", sequences.names(), taken, settings.length);
  if (const int64_t documents = sequences.documents(); documents > 0)
    texts.accounting = Counted(documents, "document") + "; ";
  for (const OwnAnswers& own : answers) {
    texts.accounting +=
        fmt::format("{} answers of the original model, written in {:.0f} s", own.answers.size(), own.seconds);
    if (own.without > 0) texts.accounting += fmt::format(", and none to {} prompts", own.without);
    texts.accounting += "; ";
  }
  texts.accounting += fmt::format("{} sequences with {} tokens, {} of them predicted; {} for validation", taken,
                                  texts.training.tokens.size(), texts.training.targets(), texts.validation.sequences());
  if (!settings.validation_text.empty()) texts.accounting += fmt::format(" from {}", settings.validation_text);
  if (sequences.cut() > 0) texts.accounting += fmt::format("; {} cut", sequences.cut());
  if (sequences.left_out() > 0)
    texts.accounting += fmt::format("; {} left out, with no token to predict", sequences.left_out());
  if (sequences.left_over() > 0)
    texts.accounting += fmt::format("; {} tokens of partly taken documents left out", sequences.left_over());
  texts.hash = HashHex(HashOf(texts.training) + HashOf(texts.validation));
  return texts;
}

std::vector<TrainingBatch> PackBatches(const TrainingText& text, std::span<const int64_t> which, int64_t most_tokens) {
  std::vector<TrainingBatch> batches;
  for (const int64_t s : which) {
    const int64_t begin = text.offsets[s], size = text.offsets[s + 1] - begin;
    if (batches.empty() || batches.back().batch.size() + size > most_tokens) batches.emplace_back();
    TrainingBatch& to = batches.back();
    to.batch.Add(std::span(text.tokens).subspan(begin, size));
    for (int64_t i = 0; i < size; ++i) to.weights.push_back(i >= text.first_targets[s] ? 1.0f : 0.0f);
    to.targets += size - text.first_targets[s];
  }
  return batches;
}

ReadingOrder::ReadingOrder(int64_t sequences, int64_t batch, uint64_t seed)
    : sequences_(sequences), batch_(batch), seed_(seed) {
  Check(sequences >= 1 && batch >= 1, "batches of {} of {} sequences", batch, sequences);
}

std::span<const int64_t> ReadingOrder::Step(int64_t step) {
  const int64_t epoch = step / steps_per_epoch(), begin = step % steps_per_epoch() * batch_;
  if (epoch != epoch_) {
    // The seed is a generator's first output, so that neighbouring epochs have unrelated orders.
    order_ = Shuffled(sequences_, Random(seed_ + 0x632be59bd9b4e019u * static_cast<uint64_t>(epoch)).Next());
    epoch_ = epoch;
  }
  return std::span(order_).subspan(begin, std::min(batch_, sequences_ - begin));
}

}  // namespace shiftrt
