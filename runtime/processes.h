// SPDX-License-Identifier: Apache-2.0
// The processes that share the work of one command: those that mpirun or srun has started, most often this one alone.
//
// All of them run the same program on the same input and make the same decisions. Only expensive loops are dealt out:
// each process computes its part, the parts are exchanged as bytes, and every process adds them up in the order in
// which a single process would have computed them. So nothing that is computed depends on the number of processes, to
// the last bit (docs/scale.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/check.h"

namespace shiftrt {

using Bytes = std::vector<std::byte>;

// Thrown when another process has ended or does not answer.
class PeerFailed : public Error {
 public:
  explicit PeerFailed(const std::string& message) : Error(message) {}
};

// Messages between processes. Messages from one process to another on one channel arrive in the order of Send().
class Link {
 public:
  static constexpr int kChannels = 16384;  // 0 .. kChannels - 1

  virtual ~Link() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns before the message has arrived.
  virtual void Send(int to, int channel, Bytes message) = 0;
  // Both calls sleep until they are done. They throw PeerFailed once any process has failed, and Interrupted a bounded
  // time after an interruption.
  virtual Bytes Receive(int from, int channel) = 0;
  virtual void Flush() = 0;  // until what was sent has been received
  // Makes the calls of all other processes throw PeerFailed: "process R of N on HOST: REASON". True if the process of
  // rank 0, which reports the failure, has learned of it within some seconds, or is the one that fails.
  virtual bool Fail(const std::string& reason) noexcept = 0;
  // True if any other process has failed.
  virtual bool failed() const = 0;
};

// Writes the bytes of a message one value after another.
class Packer {
 public:
  Packer() = default;
  explicit Packer(int64_t bytes) { bytes_.reserve(bytes); }  // about so many
  template <typename T>
  Packer& Put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  template <typename T>
  Packer& Put(const T& value) {
    return Put(std::span<const T>(&value, 1));
  }
  template <typename T>
  Packer& PutAll(const std::vector<T>& values) {
    return Put(static_cast<int64_t>(values.size())).Put(std::span<const T>(values));
  }
  Packer& PutText(std::string_view text) {
    return Put(static_cast<int64_t>(text.size())).Put(std::span<const char>(text.data(), text.size()));
  }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads the values of a message. Throws Error if it ends too early.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void Get(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Check(values.size_bytes() <= bytes_.size(), "a message between processes has {} bytes where {} are expected",
          bytes_.size(), values.size_bytes());
    if (!values.empty()) std::memcpy(values.data(), bytes_.data(), values.size_bytes());
    bytes_ = bytes_.subspan(values.size_bytes());
  }
  template <typename T>
  T Get() {
    T value{};
    Get(std::span<T>(&value, 1));
    return value;
  }
  template <typename T>
  std::vector<T> GetAll() {
    std::vector<T> values(Count(sizeof(T)));
    Get(std::span<T>(values));
    return values;
  }
  std::string GetText() {
    std::string text(Count(1), '\0');
    Get(std::span<char>(text.data(), text.size()));
    return text;
  }
  // Reads the number of values that follow, each of which takes `size` bytes or more.
  size_t Count(size_t size) {
    const auto count = Get<int64_t>();
    CheckRoom(count, 1, size);
    return static_cast<size_t>(count);
  }
  // Throws Error unless rows x cols values of `size` bytes can follow.
  void CheckRoom(int64_t rows, int64_t cols, size_t size) const {
    const auto most = static_cast<int64_t>(bytes_.size() / size);
    Check(rows >= 0 && cols >= 0 && (cols == 0 || rows <= most / cols),
          "a message between processes names {} x {} values of {} bytes and has {} bytes", rows, cols, size,
          bytes_.size());
  }
  bool done() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

// The work that one process has done, which --json lists.
struct ProcessWork {
  int64_t batches = 0, tokens = 0;  // run through a model
  int64_t fits = 0;                 // places whose correction it has solved
  int64_t sent = 0;                 // bytes to other processes
  double waited = 0;                // seconds for messages of other processes
  // If the model is split: the blocks that the process holds, and the bytes of their weights.
  int64_t first_block = 0, end_block = 0, weight_bytes = 0;
};

// One turn of work that is dealt out: each group has one item, until there are none left.
struct Round {
  int64_t first = 0;            // the item of group 0
  int64_t present = 1;          // how many groups have one: the first of them
  std::optional<int64_t> mine;  // this one's

  int64_t end() const { return first + present; }
};

class Processes {
 public:
  Processes();  // this one alone
  // Connects the processes of the link, and waits until all have done so.
  explicit Processes(std::unique_ptr<Link> link);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool alone() const { return size_ == 1; }
  bool first() const { return rank_ == 0; }  // the one that prints and writes
  const std::string& host(int rank) const { return hosts_.at(rank); }
  std::string Name(int rank) const;         // "process 3 of 8 on node7"
  int sharers() const { return sharers_; }  // how many processes may run on the cores of this one, at least 1
  int on_this_host() const { return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), hosts_.at(rank_))); }

  // Divides them into groups of `parts` processes with consecutive ranks, each of which holds one whole model: one of
  // them the first blocks, the next those that follow (models/split.h). `parts` divides the size. Without this call
  // each process is a group. All processes call it, before any work is dealt out.
  void Split(int parts);
  int parts() const { return parts_; }
  bool split() const { return parts_ > 1; }
  int part() const { return rank_ % parts_; }  // the part of the model that this process holds
  int group() const { return rank_ / parts_; }
  int groups() const { return size_ / parts_; }
  int RankOf(int group, int part) const { return group * parts_ + part; }

  // Whose result of item `index` counts, of work that is dealt out to groups: a rule of the index alone. All processes
  // of that group work at it, and its last one has the result.
  int Owner(int64_t index) const { return RankOf(static_cast<int>(index % groups()), parts_ - 1); }
  bool Mine(int64_t index) const { return index % groups() == group(); }
  // Calls turn(round) for all rounds of `count` items.
  template <typename Turn>
  void InRounds(int64_t count, const Turn& turn) const {
    for (int64_t first = 0; first < count; first += groups()) {
      Round round{first, std::min<int64_t>(groups(), count - first), {}};
      if (group() < round.present) round.mine = first + group();
      turn(round);
    }
  }
  // After so many rounds processes wait for each other, where they do so more than once. Those of a group work at
  // different batches in between: of P of them, each is idle for the time of P - 1 batches per wait.
  int64_t RoundsTogether() const { return RoundsTogether(parts_); }
  static int64_t RoundsTogether(int64_t parts) { return parts > 1 ? 8 * parts : 1; }
  // Streams of batches that wait between two parts: so many as keep the later one busy while the earlier one is late.
  static constexpr int kStreamsAhead = 4;

  // All processes make these calls, in the same order. They throw as Link does.
  std::vector<Bytes> Gather(Bytes mine);     // the messages of all processes, by rank
  Bytes Broadcast(int from, Bytes message);  // the message of `from`
  // Any: true on all processes if `mine` is on any. OfFirst: the value of the first process.
  bool Any(bool mine);
  bool OfFirst(bool mine);
  void Barrier() { Any(false); }
  // Runs `call` on all processes, one after another.
  template <typename Call>
  void InTurns(const Call& call) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) call();
      Barrier();
    }
  }
  // Runs `call` on the first process and then on the others, for calls that leave behind something that the others
  // find.
  template <typename Call>
  auto FirstBeforeOthers(const Call& call) {
    if (!first()) Barrier();
    const auto result = call();
    if (first()) Barrier();
    return result;
  }
  // Throws Error naming a process unless `value`, a description of `what`, is the same on all.
  void CheckSame(std::string_view what, const std::string& value);

  // Between two processes, on a channel of the caller's; NewChannel() gives all processes the same.
  int NewChannel();
  void Send(int to, int channel, Bytes message);
  Bytes Receive(int from, int channel);
  void Flush();

  // Between the processes of a group, with the stream of one batch after another. PassOn() returns before it has
  // arrived, but waits where several before it have not been taken over.
  void PassOn(Bytes stream);  // to the process that holds what follows
  Bytes TakeOver();           // from the one before
  // The message of the last process of the group, on all of its processes.
  Bytes FromLast(Bytes message);

  bool Fail(const std::string& reason) noexcept;
  bool failed() const { return link_ != nullptr && link_->failed(); }

  ProcessWork work;

 private:
  void Post(int to, int channel, Bytes message);
  void AwaitTaken(int ahead);  // until no more than so many streams have not been taken over

  std::unique_ptr<Link> link_;  // null where it is alone
  int rank_ = 0, size_ = 1, parts_ = 1, sharers_ = 1, channel_ = 0;
  int stream_channel_ = 0, taken_channel_ = 0, result_channel_ = 0;  // within a group
  int passed_on_ = 0;                                                // streams that were not said to be taken over
  uint64_t calls_ = 0;  // counts Gather and Broadcast; a message of another call is an error
  std::vector<std::string> hosts_;
};

std::shared_ptr<Processes> OneProcess();

std::string HostName();  // the name of this machine

}  // namespace shiftrt
