// SPDX-License-Identifier: Apache-2.0
#include "runtime/processes.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runtime/stopwatch.h"

namespace shiftrt {

namespace {

// The channel of Gather and Broadcast; NewChannel() returns the following ones.
constexpr int kCollective = 0;

// Names the host and the cores that this process may use.
std::string HostAndCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::string text = HostName() + '\n';
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) text += CPU_ISSET(cpu, &set) ? '1' : '0';
  return text;
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

Processes::Processes() : hosts_{HostName()} {}

Processes::Processes(std::unique_ptr<Link> link) : link_(std::move(link)), rank_(link_->rank()), size_(link_->size()) {
  hosts_.assign(size_, "");
  const std::string own = HostAndCores();
  const std::vector<Bytes> all = Gather(Packer().PutText(own).Take());
  sharers_ = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string text = Unpacker(all[rank]).GetText();
    hosts_[rank] = text.substr(0, text.find('\n'));
    sharers_ += text == own ? 1 : 0;
  }
}

std::string Processes::Name(int rank) const {
  return fmt::format("process {} of {} on {}", rank, size_, hosts_.at(rank));
}

void Processes::Post(int to, int channel, Bytes message) {
  work.sent += std::ssize(message);
  link_->Send(to, channel, std::move(message));
}

void Processes::Send(int to, int channel, Bytes message) { Post(to, channel, std::move(message)); }

Bytes Processes::Receive(int from, int channel) {
  const Stopwatch watch(work.waited);
  return link_->Receive(from, channel);
}

void Processes::Flush() {
  if (alone()) return;
  const Stopwatch watch(work.waited);
  link_->Flush();
}

void Processes::Split(int parts) {
  Check(parts >= 1 && size_ % parts == 0, "{} processes in groups of {}", size_, parts);
  parts_ = parts;
  stream_channel_ = NewChannel();
  taken_channel_ = NewChannel();
  result_channel_ = NewChannel();
}

void Processes::PassOn(Bytes stream) {
  AwaitTaken(kStreamsAhead - 1);
  Send(rank_ + 1, stream_channel_, std::move(stream));
  ++passed_on_;
}

void Processes::AwaitTaken(int ahead) {
  for (; passed_on_ > ahead; --passed_on_) Receive(rank_ + 1, taken_channel_);
}

Bytes Processes::TakeOver() {
  Bytes stream = Receive(rank_ - 1, stream_channel_);
  Send(rank_ - 1, taken_channel_, {});
  return stream;
}

Bytes Processes::FromLast(Bytes message) {
  const int last = RankOf(group(), parts_ - 1);
  if (rank_ != last) return Receive(last, result_channel_);
  for (int part = 0; part + 1 < parts_; ++part) Send(RankOf(group(), part), result_channel_, message);
  return message;
}

int Processes::NewChannel() { return 1 + channel_++ % (Link::kChannels - 1); }

// The message travels down a binary tree with root `from`: each process passes on what it received.
Bytes Processes::Broadcast(int from, Bytes message) {
  if (alone()) return message;
  const uint64_t call = ++calls_;
  const int place = (rank_ - from + size_) % size_;
  if (place > 0) {
    const int parent = ((place - 1) / 2 + from) % size_;
    const Bytes bytes = Receive(parent, kCollective);
    Unpacker in(bytes);
    const auto theirs = in.Get<uint64_t>();
    Check(theirs == call, "{} is at step {} of the work and {} at step {}: they do not run the same command",
          Name(parent), theirs, Name(rank_), call);
    message.assign(bytes.begin() + sizeof(uint64_t), bytes.end());
  }
  for (const int child : {2 * place + 1, 2 * place + 2})
    if (child < size_)
      Post((child + from) % size_, kCollective, Packer().Put(call).Put(std::span<const std::byte>(message)).Take());
  return message;
}

// The messages travel up a tree with root 0, where each process adds those of its children, and then down again.
std::vector<Bytes> Processes::Gather(Bytes mine) {
  std::vector<Bytes> all(size_);
  if (alone()) {
    all[0] = std::move(mine);
    return all;
  }
  AwaitTaken(0);  // so that no message is left over where all of them end together
  const uint64_t call = ++calls_;
  Packer up;
  up.Put(call).Put(rank_).PutAll(mine);
  for (const int child : {2 * rank_ + 1, 2 * rank_ + 2}) {
    if (child >= size_) continue;
    const Bytes bytes = Receive(child, kCollective);
    Unpacker in(bytes);
    const auto theirs = in.Get<uint64_t>();
    Check(theirs == call, "process {} is at step {} of the work and {} at step {}: they do not run the same command",
          child, theirs, rank_, call);
    up.Put(std::span<const std::byte>(bytes).subspan(sizeof(uint64_t)));
  }
  Bytes message = up.Take();
  if (rank_ > 0) {
    Post((rank_ - 1) / 2, kCollective, std::move(message));
    message.clear();
  }
  message = Broadcast(0, std::move(message));
  Unpacker in(message);
  in.Get<uint64_t>();
  while (!in.done()) {
    const auto rank = in.Get<int>();
    Check(rank >= 0 && rank < size_, "a message between processes comes from process {} of {}", rank, size_);
    all[rank] = in.GetAll<std::byte>();
  }
  return all;
}

bool Processes::Any(bool mine) {
  const std::vector<Bytes> all = Gather({std::byte{mine}});
  return std::any_of(all.begin(), all.end(), [](const Bytes& one) { return one.at(0) != std::byte{0}; });
}

bool Processes::OfFirst(bool mine) { return Broadcast(0, {std::byte{mine}}).at(0) != std::byte{0}; }

void Processes::CheckSame(std::string_view what, const std::string& value) {
  const std::vector<Bytes> all = Gather(Packer().PutText(value).Take());
  const std::string first = Unpacker(all[0]).GetText();
  for (int rank = 1; rank < size_; ++rank) {
    const std::string theirs = Unpacker(all[rank]).GetText();
    Check(theirs == first, "{} has another {} than {}: \"{}\" and \"{}\"", Name(rank), what, Name(0), theirs, first);
  }
}

bool Processes::Fail(const std::string& reason) noexcept { return link_ == nullptr || link_->Fail(reason); }

std::shared_ptr<Processes> OneProcess() { return std::make_shared<Processes>(); }

}  // namespace shiftrt
