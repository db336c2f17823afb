// SPDX-License-Identifier: Apache-2.0
// Loops that the processes of a context share (runtime/processes.h), for code that need not know of processes.
//
// All processes run the same program on the same input. An expensive loop over items, such as batches of a text, is
// dealt out: each process works on some of the items, and then every process gets the results of all of them. The
// results do not depend on the number of processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/context.h"
#include "runtime/messages.h"

namespace shiftrt {

class SharedItems {
 public:
  // The items 0 .. count - 1. Where a model is split, all processes that hold it together work on the same items, and
  // the results of the one with the last blocks count.
  SharedItems(const Context& context, int64_t count) : processes_(*context.processes), count_(count) {}
  // As many items as `owners`, each of which a given process works on.
  SharedItems(const Context& context, std::vector<int> owners)
      : processes_(*context.processes), count_(std::ssize(owners)), owners_(std::move(owners)) {}

  // Calls work(i) for each item of this process in ascending order. Calls ended(first, end) in every process, whenever
  // the items first .. end - 1 are done.
  template <typename Work, typename Ended>
  void ForEach(const Work& work, const Ended& ended) const {
    if (owners_.empty()) {
      processes_.InRounds(count_, [&](const Round& round) {
        if (round.mine) work(*round.mine);
        ended(round.first, round.end());
      });
      return;
    }
    for (int64_t i = 0; i < count_; ++i) {
      if (owners_[i] == processes_.rank()) work(i);
      ended(i, i + 1);
    }
  }
  template <typename Work>
  void ForEach(const Work& work) const {
    ForEach(work, [](int64_t, int64_t) {});
  }

  // Brings the results of all items to every process. results[i] is the result of item i.
  template <typename T>
  void Share(std::vector<T>& results) const {
    if (processes_.alone()) return;
    Packer mine;
    for (int64_t i = 0; i < count_; ++i)
      if (OwnerOf(i) == processes_.rank()) Write(mine, results[i]);
    const std::vector<Bytes> all = processes_.Gather(mine.Take());
    std::vector<Unpacker> theirs(all.begin(), all.end());
    for (int64_t i = 0; i < count_; ++i)
      if (OwnerOf(i) != processes_.rank()) Read(theirs.at(OwnerOf(i)), results[i]);
  }

 private:
  int OwnerOf(int64_t i) const { return owners_.empty() ? processes_.Owner(i) : owners_[i]; }

  Processes& processes_;
  int64_t count_;
  std::vector<int> owners_;  // empty where the items are dealt out by their numbers
};

// The results of work(i) for the items 0 .. count - 1, in every process. `ended` is called as ForEach calls it.
template <typename Work, typename Ended>
auto SharedLoop(const Context& context, int64_t count, const Work& work, const Ended& ended) {
  std::vector<std::decay_t<decltype(work(int64_t{}))>> results(count);
  const SharedItems items(context, count);
  items.ForEach([&](int64_t i) { results[i] = work(i); }, ended);
  items.Share(results);
  return results;
}
template <typename Work>
auto SharedLoop(const Context& context, int64_t count, const Work& work) {
  return SharedLoop(context, count, work, [](int64_t, int64_t) {});
}
// After how many items a long loop shares its results. It costs little there: the processes of a split model wait for
// each other only so often.
inline int64_t ItemsBetweenSharing(const Context& context) {
  return context.processes->RoundsTogether() * context.processes->groups();
}

// Returns the values of all processes, one each, in an order that is the same everywhere.
template <typename T>
std::vector<T> FromAll(const Context& context, const T& mine) {
  Packer packer;
  Write(packer, mine);
  std::vector<T> all;
  for (const Bytes& one : context.processes->Gather(packer.Take())) {
    Unpacker in(one);
    Read(in, all.emplace_back());
  }
  return all;
}

// These decide what all processes do together or not at all: by the wish of the process that writes the files, or by
// whether any process wishes it.
inline bool DecidedByWriter(const Context& context, bool wish) { return context.processes->OfFirst(wish); }
inline bool WantedByAny(const Context& context, bool wish) { return context.processes->Any(wish); }
// The number of processes that share the work.
inline int64_t Sharers(const Context& context) { return context.processes->size(); }
// True if no other process takes a share of the work.
inline bool WorksAlone(const Context& context) { return context.processes->alone(); }
// One process writes the files: this one, or another.
inline bool WritesFiles(const Context& context) { return context.processes->first(); }
// Throws Error unless `value`, a description of `what`, is the same in all processes.
inline void CheckSame(const Context& context, std::string_view what, const std::string& value) {
  if (!context.processes->alone()) context.processes->CheckSame(what, value);
}

// Count the work that --json lists for each process: a batch of so many tokens that ran through a model, and a place
// whose correction was solved. Threads of one process may count at the same time.
inline void Count(int64_t& what, int64_t more) { std::atomic_ref(what).fetch_add(more, std::memory_order_relaxed); }
inline void CountBatch(const Context& context, int64_t tokens) {
  Count(context.processes->work.batches, 1);
  Count(context.processes->work.tokens, tokens);
}
inline void CountFit(const Context& context) { Count(context.processes->work.fits, 1); }

}  // namespace shiftrt
