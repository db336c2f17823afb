// SPDX-License-Identifier: Apache-2.0
#include "runtime/mpi/link.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/files.h"
#include "runtime/interrupts_held.h"
#include "runtime/mpi/mpi.h"

namespace shiftrt {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Tags of MPI messages. Every implementation allows tags up to 32767. Those of channels follow these.
enum Tag { kAliveTag, kNoticeTag, kAcknowledgementTag, kFirstChannelTag };

constexpr size_t kNoticeBytes = 1024;  // size of the zero-terminated text about a process that has failed
// The first character of such a text, before the rank of its sender: the sender itself has failed, or it reports that
// another process has.
constexpr char kOwn = 'o', kSeen = 's';
constexpr size_t kInline = 1024 - 8;        // bytes of a message that travel with its length
constexpr size_t kPiece = size_t{1} << 30;  // MPI counts bytes in an int
constexpr seconds kAlivePeriod{1};          // time between two signs of life
constexpr seconds kInterruptGrace{10};      // time for the others to agree to an interruption
constexpr seconds kAnswerGrace{3};          // time for the first process to confirm that it knows of a failure
constexpr seconds kEndGrace{30};            // time for this process to end by itself once another has failed
// MPI_Init and MPI_Finalize wait for all processes, without a limit of their own. This one is in units of the silence
// after which a process counts as failed, because starting on many hosts takes longer than an answer.
constexpr int kAllGrace = 5;

// A message in transfer. Its first part has its length and its first bytes, so that a short message is one part.
class Transfer {
 public:
  Transfer(int peer, int channel) : peer_(peer), tag_(kFirstChannelTag + channel) {}  // to receive
  Transfer(int peer, int channel, Bytes message) : Transfer(peer, channel) {
    sends_ = true;
    message_ = std::move(message);
  }
  bool sends() const { return sends_; }
  Bytes& message() { return message_; }

  void Start(Mpi& mpi) {
    if (!sends_) {
      requests_.push_back(mpi.Receive(first_, peer_, tag_));
      return;
    }
    const auto length = static_cast<uint64_t>(message_.size());
    std::memcpy(first_.data(), &length, sizeof length);
    std::copy_n(message_.data(), Inline(), first_.data() + sizeof length);
    requests_.push_back(mpi.Send(std::span(first_).first(sizeof length + Inline()), peer_, tag_));
    ForEachPiece([&](std::span<std::byte> piece) { requests_.push_back(mpi.Send(piece, peer_, tag_)); });
  }

  // True if the message has arrived.
  bool Test(Mpi& mpi) {
    std::erase_if(requests_, [&](Mpi::Request& request) { return mpi.Test(request); });
    if (!requests_.empty()) return false;
    if (sends_ || has_length_) return true;
    uint64_t length = 0;
    std::memcpy(&length, first_.data(), sizeof length);
    has_length_ = true;
    message_.resize(length);
    std::copy_n(first_.data() + sizeof length, Inline(), message_.data());
    ForEachPiece([&](std::span<std::byte> piece) { requests_.push_back(mpi.Receive(piece, peer_, tag_)); });
    return requests_.empty();
  }

 private:
  size_t Inline() const { return std::min(message_.size(), kInline); }

  template <typename Call>
  void ForEachPiece(const Call& call) {
    for (size_t begin = Inline(); begin < message_.size(); begin += kPiece)
      call(std::span(message_).subspan(begin, std::min(kPiece, message_.size() - begin)));
  }

  int peer_, tag_;
  bool sends_ = false, has_length_ = false;
  Bytes message_;
  std::array<std::byte, sizeof(uint64_t) + kInline> first_;
  std::vector<Mpi::Request> requests_;
};

// Receives messages of a fixed size again and again.
class Mailbox {
 public:
  Mailbox(int from, int tag) : from_(from), tag_(tag) {}
  // The text of a message that has arrived, if any.
  std::optional<std::string> Take(Mpi& mpi) {
    if (!posted_) request_ = mpi.Receive(text_, from_, tag_);
    posted_ = !mpi.Test(request_);
    if (posted_) return {};
    return std::string(reinterpret_cast<const char*>(text_.data()));
  }
  // Stops receiving.
  void Close(Mpi& mpi) {
    if (!posted_) return;
    mpi.Cancel(request_);
    while (!mpi.Test(request_)) std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  int from_, tag_;
  bool posted_ = false;
  Mpi::Request request_{};
  std::array<std::byte, kNoticeBytes> text_{};
};

// Sends a text, unless the one before is still in transfer.
class Letter {
 public:
  void Send(Mpi& mpi, const std::string& text, int to, int tag) {
    if (!Sent(mpi)) return;
    std::copy_n(text.data(), std::min(text.size(), kNoticeBytes - 1), reinterpret_cast<char*>(text_.data()));
    request_ = mpi.Send(text_, to, tag);
  }
  bool Sent(Mpi& mpi) {
    if (request_ && mpi.Test(*request_)) request_.reset();
    return !request_;
  }

 private:
  std::optional<Mpi::Request> request_;
  std::array<std::byte, kNoticeBytes> text_{};
};

class MpiLink : public Link {
 public:
  MpiLink(MpiKind kind, seconds silence) : silence_(silence) {
    std::unique_lock lock(mutex_);
    thread_ = std::thread([this, kind] { Serve(kind); });
    if (!changed_.wait_for(lock, kAllGrace * silence_, [&] { return size_ > 0 || error_; }))
      EndAtOnce("not all processes have started");
    if (!error_) return;
    lock.unlock();
    thread_.join();
    shiftrt::Fail("{}", *error_);
  }

  ~MpiLink() override {
    std::unique_lock lock(mutex_);
    ending_ = true;
    asked_.notify_all();
    if (!changed_.wait_for(lock, kAllGrace * silence_, [&] { return served_; }))
      EndAtOnce("this process is done, but not all processes have ended");
    lock.unlock();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void Send(int to, int channel, Bytes message) override {
    const std::lock_guard lock(mutex_);
    ThrowIfFailed();
    ++sending_;
    queued_.emplace_back(to, channel, std::move(message));
    asked_.notify_all();
  }

  Bytes Receive(int from, int channel) override {
    std::unique_lock lock(mutex_);
    arrived_.reset();
    queued_.emplace_back(from, channel);
    asked_.notify_all();
    Wait(lock, [&] { return arrived_.has_value(); });
    return std::move(*arrived_);
  }

  void Flush() override {
    std::unique_lock lock(mutex_);
    Wait(lock, [&] { return sending_ == 0; });
  }

  bool failed() const override {
    const std::lock_guard lock(mutex_);
    return failed_.has_value();
  }

  // All processes may fail for the same reason at the same time. All but the first therefore wait briefly to see
  // whether the first does.
  bool Fail(const std::string& reason) noexcept override {
    try {
      std::unique_lock lock(mutex_);
      if (failed_) return true;
      if (rank_ > 0 && changed_.wait_for(lock, seconds(1), [&] { return failed_.has_value(); })) return true;
      own_failure_ = fmt::format("{}: {}", Self(), reason);
      asked_.notify_all();
      changed_.wait_for(lock, kAnswerGrace + seconds(2), [&] { return told_; });
      return acknowledged_ || rank_ == 0;
    } catch (...) {
      return false;
    }
  }

 private:
  // For a thread that hangs in MPI_Init or MPI_Finalize, which nothing can interrupt.
  [[noreturn]] void EndAtOnce(const char* reason) const {
    std::fprintf(stderr, "shiftrt: %s\n",
                 fmt::format("{} within {} s; SHIFTRT_PEER_TIMEOUT={} sets a fifth of that time", reason,
                             (kAllGrace * silence_).count(), silence_.count())
                     .c_str());
    std::fflush(nullptr);
    std::_Exit(1);
  }

  std::string Self() const { return fmt::format("process {} of {} on {}", rank_, size_, host_); }

  void ThrowIfFailed() const {
    if (failed_) throw PeerFailed(*failed_);
  }

  template <typename Condition>
  void Wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    std::optional<Clock::time_point> interrupted;
    while (!condition()) {
      ThrowIfFailed();
      changed_.wait_for(lock, milliseconds(200));
      try {
        CheckInterrupted();
      } catch (const Interrupted&) {
        if (!interrupted) interrupted = Clock::now();
        if (Clock::now() - *interrupted > kInterruptGrace) throw;
      }
    }
  }

  // The thread that makes all calls of MPI.

  void Serve(MpiKind kind) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    try {
      mpi_ = Mpi::Load(kind);
      mpi_->Start();
      const int size = mpi_->Size();
      rank_ = mpi_->Rank();
      Set([&] { size_ = size; });
    } catch (const std::exception& error) {
      Set([&] { error_ = error.what(); });
      return;
    }
    try {
      Loop();
      // A process for which another one waits in vain must not wait here.
      if (!failed_ && !own_failure_) {
        for (Mailbox* mailbox : {&alive_, &notices_, &acknowledgements_}) mailbox->Close(*mpi_);
        mpi_->Finalize();
      }
    } catch (const std::exception& error) {
      // OpenMPI and MPICH report a lost connection as an error of a call.
      Failed(fmt::format("{} has lost its connection to another process: {}", Self(), error.what()), true);
    }
    Set([&] { served_ = true; });
  }

  void Loop() {
    const int before = (rank_ - 1 + size_) % size_, after = (rank_ + 1) % size_;
    alive_ = Mailbox(before, kAliveTag);
    Letter sign, ack;
    Clock::time_point last_sign{}, last_arrival = Clock::now();
    std::string host_before = "a host that has not said its name";
    int idle = 0;
    while (true) {
      if (Step()) idle = 0;
      const auto now = Clock::now();
      if (size_ > 1 && (idle % 64 == 0 || active_.empty())) {
        if (now - last_sign > kAlivePeriod) {
          last_sign = now;
          sign.Send(*mpi_, host_, after, kAliveTag);
        }
        if (const auto sender = alive_.Take(*mpi_)) {
          host_before = *sender;
          last_arrival = now;
        } else if (now - last_arrival > silence_ && !failed_) {
          Failed(fmt::format("process {} of {} on {} has not answered for {} s", before, size_, host_before,
                             silence_.count()),
                 true);
          Tell(0, size_);
        }
        if (const auto notice = notices_.Take(*mpi_)) {
          const bool untold = notice->front() == kOwn;
          Failed(notice->substr(notice->find(' ') + 1), rank_ == 0 && untold && !own_failure_);
          if (rank_ == 0) ack.Send(*mpi_, "heard", std::atoi(notice->c_str() + 1), kAcknowledgementTag);
        }
        if (acknowledgements_.Take(*mpi_)) Set([&] { acknowledged_ = true; });
        if (failed_at_ && now - *failed_at_ > kEndGrace && !InterruptsHeld::Any()) std::_Exit(1);
      }
      ++idle;
      std::unique_lock lock(mutex_);
      if (own_failure_ && !told_) {
        lock.unlock();
        TellOwn(now);
        lock.lock();
      }
      if (ending_ && (failed_ || own_failure_ || (queued_.empty() && active_.empty()))) return;
      if (!queued_.empty()) continue;
      asked_.wait_for(lock, active_.empty() ? microseconds(20000) : idle < 50 ? microseconds(20) : microseconds(500));
    }
  }

  // Starts the requested transfers and advances those in progress. True if any data have arrived.
  bool Step() {
    {
      const std::lock_guard lock(mutex_);
      started_.splice(started_.end(), queued_);
    }
    for (Transfer& transfer : started_) transfer.Start(*mpi_);
    active_.splice(active_.end(), started_);
    bool progress = false;
    for (auto transfer = active_.begin(); transfer != active_.end();) {
      if (!transfer->Test(*mpi_)) {
        ++transfer;
        continue;
      }
      progress = true;
      Set([&] {
        if (transfer->sends()) {
          --sending_;
        } else {
          arrived_ = std::move(transfer->message());
        }
      });
      transfer = active_.erase(transfer);
    }
    return progress;
  }

  // The first process must report the failure before another one ends, because launchers kill all processes as soon as
  // one ends.
  void TellOwn(Clock::time_point now) {
    if (rank_ > 0 && !asked_at_) {
      asked_at_ = now;
      return Tell(0, 1);
    }
    if (rank_ > 0 && !acknowledged_ && now - *asked_at_ < kAnswerGrace) return;
    Tell(rank_ > 0 ? 1 : 0, size_);
    Set([&] { told_ = true; });
  }

  // Tells processes begin .. end - 1 about the failure.
  void Tell(int begin, int end) {
    const std::string text =
        fmt::format("{}{} {}", own_failure_ ? kOwn : kSeen, rank_, own_failure_ ? *own_failure_ : *failed_);
    std::list<Letter> letters;
    for (int rank = begin; rank < end; ++rank)
      if (rank != rank_) letters.emplace_back().Send(*mpi_, text, rank, kNoticeTag);
    const auto until = Clock::now() + seconds(1);
    while (Clock::now() < until &&
           std::any_of(letters.begin(), letters.end(), [&](Letter& letter) { return !letter.Sent(*mpi_); }))
      std::this_thread::sleep_for(milliseconds(1));
    letters_.splice(letters_.end(), letters);
  }

  // `report`: this process is the one that prints it.
  void Failed(const std::string& text, bool report) {
    if (failed_) return;
    if (report) std::fprintf(stderr, "shiftrt: %s\n", text.c_str());
    Set([&] { failed_ = text; });
    failed_at_ = Clock::now();
    RequestInterrupt();  // stops computations that do not wait for another process
  }

  template <typename Change>
  void Set(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  const seconds silence_;
  const std::string host_ = HostName();
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable asked_, changed_;  // by the thread that computes; by the one that serves
  std::list<Transfer> queued_;
  std::optional<Bytes> arrived_;
  int64_t sending_ = 0;
  std::optional<std::string> error_, failed_, own_failure_;
  bool ending_ = false, served_ = false, acknowledged_ = false, told_ = false;
  int rank_ = 0, size_ = 0;

  std::unique_ptr<Mpi> mpi_;  // these belong to the thread that serves
  Mailbox alive_{0, kAliveTag}, notices_{Mpi::kAnySource, kNoticeTag},
      acknowledgements_{Mpi::kAnySource, kAcknowledgementTag};
  std::list<Transfer> started_, active_;
  std::list<Letter> letters_;
  std::optional<Clock::time_point> failed_at_, asked_at_;
};

}  // namespace

std::unique_ptr<Link> MakeMpiLink(MpiKind kind, seconds silence) { return std::make_unique<MpiLink>(kind, silence); }

}  // namespace shiftrt
