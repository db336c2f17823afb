// SPDX-License-Identifier: Apache-2.0
#include "runtime/processes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "runtime/launcher.h"
#include "runtime/shared_items.h"
#include "tests/runtime/thread_link.h"

namespace shiftrt {
namespace {

Bytes Text(const std::string& text) { return Packer().PutText(text).Take(); }
std::string TextOf(const Bytes& bytes) { return Unpacker(bytes).GetText(); }

TEST(Processes, OneAloneHasNobodyToWaitFor) {
  Processes alone;
  EXPECT_TRUE(alone.alone());
  EXPECT_TRUE(alone.first());
  EXPECT_EQ(alone.sharers(), 1);
  EXPECT_EQ(TextOf(alone.Gather(Text("a")).at(0)), "a");
  EXPECT_EQ(TextOf(alone.Broadcast(0, Text("b"))), "b");
  EXPECT_TRUE(alone.Any(true));
  EXPECT_FALSE(alone.Any(false));
  EXPECT_NO_THROW(alone.CheckSame("thing", "x"));
  int64_t rounds = 0;
  alone.InRounds(3, [&](const Round& round) {
    EXPECT_EQ(round.first, rounds);
    EXPECT_EQ(round.mine, rounds++);
    EXPECT_EQ(round.present, 1);
  });
  EXPECT_EQ(rounds, 3);
}

TEST(Processes, ExchangeWhatEachHas) {
  for (const int size : {1, 2, 3, 5, 8, 9}) {
    InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
      const int rank = processes->rank();
      const std::vector<Bytes> all = processes->Gather(Text(std::string(rank, 'x')));
      for (int from = 0; from < size; ++from) EXPECT_EQ(TextOf(all[from]), std::string(from, 'x'));
      for (int from = 0; from < size; ++from)
        EXPECT_EQ(TextOf(processes->Broadcast(from, Text(std::to_string(rank)))), std::to_string(from));
      EXPECT_TRUE(processes->Any(rank == size - 1));
      EXPECT_FALSE(processes->Any(false));
      EXPECT_EQ(processes->OfFirst(rank == 0), true);
      EXPECT_EQ(processes->OfFirst(rank != 0), false);
      EXPECT_EQ(processes->sharers(), size);
      EXPECT_EQ(processes->on_this_host(), size);
      // Numbers of which each knows its own.
      Context context;
      context.processes = processes;
      int64_t done = 0, worked = 0;
      const std::vector<std::vector<double>> numbers = SharedLoop(
          context, 13,
          [&](int64_t i) {
            ++worked;
            return std::vector<double>(i, static_cast<double>(i));
          },
          [&](int64_t first, int64_t end) {
            EXPECT_EQ(first, done);
            done = end;
          });
      EXPECT_EQ(done, 13);
      EXPECT_EQ(worked, (13 - rank + size - 1) / size);
      for (size_t i = 0; i < 13; ++i) EXPECT_EQ(numbers[i], std::vector<double>(i, static_cast<double>(i)));
      // One after another, each its own turns.
      static std::atomic<int> turn;
      if (rank == 0) turn = 0;
      processes->Barrier();
      processes->InTurns([&] { EXPECT_EQ(turn++, rank); });
    });
  }
}

TEST(Processes, RoundsDealEveryItemOnce) {
  for (const int size : {1, 3, 8})
    for (const int64_t count : {0, 1, 7, 8, 17}) {
      std::mutex mutex;
      std::map<int64_t, int> done;
      InProcesses(size, [&](const std::shared_ptr<Processes>& processes) {
        int64_t seen = 0;
        processes->InRounds(count, [&](const Round& round) {
          EXPECT_EQ(round.first, seen);
          seen = round.end();
          EXPECT_EQ(round.mine.has_value(), processes->rank() < round.present);
          if (!round.mine) return;
          EXPECT_TRUE(processes->Mine(*round.mine));
          const std::lock_guard lock(mutex);
          ++done[*round.mine];
        });
        EXPECT_EQ(seen, count);
      });
      EXPECT_EQ(std::ssize(done), count);
      for (const auto& [item, times] : done) EXPECT_EQ(times, 1) << item;
    }
}

TEST(Processes, SayWhoDiffers) {
  InProcesses(3, [&](const std::shared_ptr<Processes>& processes) {
    EXPECT_NO_THROW(processes->CheckSame("text", "same"));
    try {
      processes->CheckSame("text", processes->rank() == 2 ? "that" : "this");
      ADD_FAILURE() << "the difference was not found";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("process 2 of 3 on "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("\"that\" and \"this\""), std::string::npos) << error.what();
    }
  });
}

TEST(Processes, MessagesThatEndTooEarlyAreRefused) {
  const Bytes bytes = Packer().Put(int64_t{5}).Put(1.5f).Take();
  EXPECT_THROW(Unpacker(bytes).GetAll<float>(), Error);
  EXPECT_THROW(Unpacker(bytes).GetText(), Error);
  Unpacker in(bytes);
  EXPECT_EQ(in.Get<int64_t>(), 5);
  EXPECT_EQ(in.Get<float>(), 1.5f);
  EXPECT_TRUE(in.done());
  EXPECT_THROW(in.Get<char>(), Error);
}

// The variables that the launchers set, according to their documentation and to a run of each.
TEST(Launcher, IsFoundByItsEnvironment) {
  const auto launch = [](const std::map<std::string, std::string>& variables) {
    return FindLaunch([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_FALSE(launch({}));
  EXPECT_FALSE(launch({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}));  // in a batch script, before srun

  const auto openmpi = launch({{"OMPI_COMM_WORLD_SIZE", "8"}, {"PMIX_RANK", "3"}});
  ASSERT_TRUE(openmpi);
  EXPECT_EQ(openmpi->size, 8);
  EXPECT_EQ(openmpi->mpi, MpiKind::kOpenMpi);
  const auto mpich = launch({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->size, 2);
  EXPECT_EQ(mpich->mpi, MpiKind::kMpich);
  const auto pmix = launch({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  ASSERT_TRUE(pmix);
  EXPECT_EQ(pmix->size, 4);
  EXPECT_EQ(pmix->mpi, MpiKind::kOpenMpi);
  const auto bare = launch({{"SLURM_STEP_NUM_TASKS", "4"}});
  ASSERT_TRUE(bare);
  EXPECT_FALSE(bare->mpi);
  EXPECT_EQ(launch({{"PMI_SIZE", "2"}, {"SHIFTRT_MPI", "openmpi"}})->mpi, MpiKind::kOpenMpi);
  EXPECT_THROW(launch({{"PMI_SIZE", "2"}, {"SHIFTRT_MPI", "lam"}}), UsageError);
}

}  // namespace
}  // namespace shiftrt
