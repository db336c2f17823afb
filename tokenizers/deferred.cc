// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/deferred.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "runtime/check.h"
#include "runtime/printable.h"

namespace shiftrt {

namespace {

// A tokenizer with more ids than the model's embedding has rows, as gemma-3-1b's is published.
class TokenizerBeyondRows final : public Tokenizer {
 public:
  TokenizerBeyondRows(std::unique_ptr<Tokenizer> tokenizer, std::string model, int64_t rows)
      : tokenizer_(std::move(tokenizer)), model_(std::move(model)), rows_(static_cast<int32_t>(rows)) {
    const auto with_row = [&](int32_t id) { return id < rows_ ? id : -1; };
    bos_ = with_row(tokenizer_->bos_token());
    eos_ = with_row(tokenizer_->eos_token());
    prefix_ = tokenizer_->prefix();
    notes_ = tokenizer_->notes();
    for (const int32_t id : prefix_) RequireRow(id);
  }

  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids = tokenizer_->Encode(text);
    for (const int32_t id : ids) RequireRow(id);
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override {
    return tokenizer_->Decode(ids, skip_special);
  }
  std::string Piece(int32_t id) const override { return tokenizer_->Piece(id); }
  int32_t vocab_size() const override { return std::min(rows_, tokenizer_->vocab_size()); }

 private:
  void RequireRow(int32_t id) const {
    if (id < rows_) return;
    Fail(
        "{}: the text has token {}, '{}', but the model's embedding has {} rows for the {} tokens of its tokenizer: "
        "leave this token out of the text, or give the tokenizer that belongs to the model",
        model_, id, Printable(tokenizer_->Decode(std::span(&id, 1), /*skip_special=*/false)), rows_,
        tokenizer_->vocab_size());
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::string model_;
  int32_t rows_;
};

}  // namespace

struct DeferredTokenizer::State {
  std::filesystem::path model;
  int64_t rows = 0;
  std::mutex mutex;  // guards `loaded`
  std::shared_ptr<const Tokenizer> loaded;
  std::function<void(const std::string&)> tell;  // null: nobody
};

DeferredTokenizer::DeferredTokenizer(std::shared_ptr<const Tokenizer> loaded) {
  if (loaded == nullptr) return;
  state_ = std::make_shared<State>();
  state_->loaded = std::move(loaded);
}

DeferredTokenizer::DeferredTokenizer(std::unique_ptr<Tokenizer> loaded)
    : DeferredTokenizer(std::shared_ptr<const Tokenizer>(std::move(loaded))) {}

DeferredTokenizer::DeferredTokenizer(std::filesystem::path model, int64_t rows) : state_(std::make_shared<State>()) {
  state_->model = std::move(model);
  state_->rows = rows;
}

void DeferredTokenizer::ReportTo(std::function<void(const std::string&)> tell) const { state_->tell = std::move(tell); }

const Tokenizer& DeferredTokenizer::Get() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->loaded == nullptr) {
    std::unique_ptr<Tokenizer> tokenizer = LoadTokenizer(state_->model);
    if (tokenizer->vocab_size() > state_->rows)
      tokenizer = std::make_unique<TokenizerBeyondRows>(std::move(tokenizer), state_->model.string(), state_->rows);
    state_->loaded = std::move(tokenizer);
    if (state_->tell)
      for (const std::string& note : state_->loaded->notes()) state_->tell(note);
  }
  return *state_->loaded;
}

}  // namespace shiftrt
