// SPDX-License-Identifier: Apache-2.0
/// \file
/// Running a model: generation, log-probabilities, logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiftrt/generation.h"
#include "shiftrt/model.h"
#include "shiftrt/resources.h"

namespace shiftrt {

/// The keys and values of one sequence, so that a runner can continue it. It belongs to the runner that made it.
class SequenceCache {
 public:
  /// Moves the sequence.
  SequenceCache(SequenceCache&&) noexcept;
  /// Moves the sequence.
  /// \return this cache
  SequenceCache& operator=(SequenceCache&&) noexcept;
  ~SequenceCache();

  /// \return tokens of the sequence so far
  int64_t Size() const;
  /// \return tokens that the sequence may have
  int64_t Capacity() const;
  /// Forgets the tokens after the first `size`, which must not exceed Size().
  /// \param size number of tokens to keep
  void Truncate(int64_t size);

 private:
  friend class ModelRunner;
  struct Impl;
  explicit SequenceCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Runs one model. It owns the memory for intermediate results, so one thread may use it at a time. Runners of several
/// threads, of the same model or of others, work at the same time; on a GPU, those that were given the same prepared
/// resources take turns (Prepare()). A callback may call other functions of its runner, but not start another reply.
class ModelRunner {
 public:
  /// \param model the model to run; the runner keeps its weights in memory
  /// \param resources what the runner may use of the machine
  /// \throws UsageError for resources that this machine lacks; OutOfMemory if a GPU cannot hold the weights
  explicit ModelRunner(const LanguageModel& model, const Resources& resources = {});
  /// Moves the runner; its caches stay valid.
  ModelRunner(ModelRunner&&) noexcept;
  /// Moves the runner; its caches stay valid.
  /// \return this runner
  ModelRunner& operator=(ModelRunner&&) noexcept;
  ~ModelRunner();

  /// Continues a prompt.
  /// \param prompt UTF-8
  /// \param settings how tokens are chosen
  /// \param on_token called with each token id as it comes; generation stops when it returns false
  /// \return the generated tokens and their text
  /// \throws UsageError with the name of a field for a setting out of its range; Error if the prompt and max_tokens
  ///     together exceed the positions of the model, or as LanguageModel::Encode does; Interrupted after
  ///     RequestInterrupt()
  Generation Generate(std::string_view prompt, const GenerationSettings& settings = {},
                      const std::function<bool(int32_t token)>& on_token = {});
  /// The same for a prompt of token ids, to which no beginning-of-sequence token is added.
  /// \param prompt token ids, at least one
  /// \param settings how tokens are chosen
  /// \param on_token called with each token id as it comes; generation stops when it returns false
  /// \return the generated tokens and their text
  /// \throws Error as above, and for no tokens or a token id that does not exist; Interrupted
  Generation Generate(std::span<const int32_t> prompt, const GenerationSettings& settings = {},
                      const std::function<bool(int32_t token)>& on_token = {});

  /// Continues many prompts, several of them together: the weights are then read once for all of them. A
  /// reply that ends makes room for the next prompt.
  /// \param prompts token ids of each prompt, at least one; LanguageModel::Encode and EncodeMessage make them
  /// \param settings how tokens are chosen, without on_text; prompt i has the seed `seed` + i, and up to rounding the
  ///     reply that Generate() gives with it
  /// \param batch prompts that are continued together at most, at least 1; each takes the memory of its keys and values
  /// \param on_reply called with the index of a prompt and its reply, in the order in which the replies end; the
  ///     seconds of a reply are not measured
  /// \param on_token called with the index of a prompt and each token id of its reply as it comes; that reply ends when
  ///     it returns false
  /// \return counts and times of all prompts together
  /// \throws UsageError for settings with on_text or out of their range, and for a batch below 1; Error as Generate()
  ///     does, before any work; OutOfMemory; Interrupted
  GenerationTotals GenerateMany(std::span<const std::vector<int32_t>> prompts, const GenerationSettings& settings,
                                int64_t batch,
                                const std::function<void(size_t prompt, const Generation& reply)>& on_reply,
                                const std::function<bool(size_t prompt, int32_t token)>& on_token = {});

  /// Log-probabilities of the tokens of several sequences, which are computed together.
  /// \param sequences token ids of each sequence, at least 2 each
  /// \return for each sequence of n tokens, the n - 1 natural logarithms of the probabilities of its tokens 1 to n - 1,
  ///     each given the tokens before it
  /// \throws Error for a sequence that is too short or too long, or a token id that does not exist; OutOfMemory
  std::vector<std::vector<float>> LogProbabilities(std::span<const std::vector<int32_t>> sequences);

  /// Begins a sequence.
  /// \param capacity tokens that it may have, 1 to ModelShape::max_positions
  /// \return a cache without tokens
  /// \throws Error for a capacity out of that range
  SequenceCache NewSequence(int64_t capacity) const;
  /// Appends tokens to a sequence.
  /// \param tokens token ids, at least one
  /// \param sequence the sequence, made by this runner
  /// \return ModelShape::vocabulary logits of the token that follows
  /// \throws Error if the sequence becomes longer than its capacity, or for a token id that does not exist
  std::vector<float> NextLogits(std::span<const int32_t> tokens, SequenceCache& sequence);

  /// Logits of all positions of a sequence.
  /// \param tokens token ids, at least one
  /// \param logits receives (tokens, ModelShape::vocabulary) floats, row by row: those of the token that follows each
  /// \throws UsageError for a buffer of another size; Error for a sequence that is too long, or a token id that does
  ///     not exist; OutOfMemory
  void Logits(std::span<const int32_t> tokens, std::span<float> logits);
  /// The residual stream of a sequence before each block that runs, and after the last.
  /// \param tokens token ids, at least one
  /// \param on_stream called with the layer of the original model, and with (tokens, ModelShape::hidden) floats that
  ///     are valid during the call; at last with ModelShape::layers and the stream that the final norm reads
  /// \throws Error for a sequence that is too long, or a token id that does not exist; OutOfMemory
  void HiddenStates(std::span<const int32_t> tokens,
                    const std::function<void(int64_t layer, std::span<const float> stream)>& on_stream);
  /// Says what each block that runs adds to the residual stream of a sequence.
  /// \param tokens token ids, at least one
  /// \param on_update called with the layer of the original model, and with (tokens, ModelShape::hidden) floats that
  /// are
  ///     valid during the call
  /// \throws Error for a sequence that is too long, or a token id that does not exist; OutOfMemory
  void Updates(std::span<const int32_t> tokens,
               const std::function<void(int64_t layer, std::span<const float> update)>& on_update);

 private:
  friend class Conversation;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A conversation with an instruct model, written as its chat template says. Keys and values are kept between turns, so
/// that each turn computes only what is new.
class Conversation {
 public:
  /// \param runner the runner of the model; it must outlive the conversation
  /// \param system the system's message; empty: none
  /// \throws Error if the model has no chat template
  explicit Conversation(ModelRunner& runner, std::string_view system = {});
  ~Conversation();

  /// Replies to the user's next message.
  /// \param message UTF-8
  /// \param settings how tokens are chosen; max_tokens is cut to what the positions of the model leave
  /// \param on_token called with each token id as it comes; the reply stops when it returns false
  /// \return the reply; the prompt's tokens are those that this turn computed
  /// \throws UsageError for a setting out of its range; Error if the conversation fills the positions of the model;
  ///     Interrupted after RequestInterrupt(). A reply that fails leaves the conversation as it was before.
  Generation Reply(std::string_view message, const GenerationSettings& settings = {},
                   const std::function<bool(int32_t token)>& on_token = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiftrt
