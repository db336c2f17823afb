// SPDX-License-Identifier: Apache-2.0
// Simulations, event by event, of what docs/dev/architecture.md states in closed form: the batches that are dealt out
// in rounds, the sites that processes own, and the tree of messages between all. For 2 to 1024 of them.
#include <gtest/gtest.h>

#include "estimate/messages.h"

namespace shiftrt {
namespace {

constexpr int kSizes[] = {2, 3, 7, 8, 64, 100, 1000, 1024};

// Each round begins when the slowest process has ended the last.
TEST(Simulation, OfRoundsGivesEveryProcessItsTurn) {
  for (const int size : kSizes)
    for (const int64_t batches : {1, 63, 64, 2048}) {
      std::vector<int64_t> done(size, 0);
      int64_t rounds = 0, next = 0;
      while (next < batches) {
        for (int rank = 0; rank < size && next < batches; ++rank, ++next) {
          EXPECT_EQ(next % size, rank);
          ++done[rank];
        }
        ++rounds;
      }
      EXPECT_EQ(rounds, (batches + size - 1) / size);
      EXPECT_LE(*std::max_element(done.begin(), done.end()) - *std::min_element(done.begin(), done.end()), 1);
    }
}

// Rows of every batch go to the owner of every place.
TEST(Simulation, OfTheSumsSendsTheBytesOfTheFormula) {
  constexpr int64_t kHidden = 64, kTokens = 2048;
  for (const int size : kSizes)
    for (const int64_t sites : {1, 20, 2000}) {
      const int64_t batches = 2 * size;
      std::vector<int64_t> additions(size, 0), rows_sent(size, 0);
      for (int64_t place = 0; place < sites; ++place) {
        const auto owner = static_cast<int>((1 + place) % size);
        for (int64_t batch = 0; batch < batches; ++batch) {
          ++additions[owner];
          if (batch % size != owner) ++rows_sent[batch % size];
        }
      }
      // 3 d^2 T k / N FLOP where k is a multiple of N, and one place more or less elsewhere.
      EXPECT_EQ(*std::max_element(additions.begin(), additions.end()), (sites + size - 1) / size * batches);
      int64_t all = 0;
      for (const int64_t sent : rows_sent) all += sent;
      EXPECT_EQ(all, sites * batches * (size - 1) / size);
      // The same of the formula that plans are made by, without the exchange at the end.
      const std::vector<BatchShape> shapes(batches, {kTokens, 4});
      for (const int rank : {0, 1, size - 1}) {
        const Place here = {rank, size};
        const int64_t exchange = CollectBytes(here, {{}, sites, kHidden});
        const int64_t asked = batches / size * GatherBytes(here, [](int) { return int64_t{1}; });
        EXPECT_EQ(CollectBytes(here, {shapes, sites, kHidden}) - exchange - asked,
                  rows_sent[rank] * (kTokens * (24 + 8 * kHidden) + 32))
            << rank << " of " << size << ", " << sites << " sites";
      }
    }
}

// A process sends to the others when it has the message, one after another.
TEST(Simulation, OfTheTreeTellsAllInTwiceItsDepth) {
  for (const int size : kSizes) {
    std::vector<int64_t> at(size, 0), sent(size, 0);
    for (int process = 0; process < size; ++process)
      for (int child = 2 * process + 1; child <= 2 * process + 2 && child < size; ++child)
        at[child] = at[process] + ++sent[process];
    int64_t depth = 0;
    while ((int64_t{2} << depth) - 1 < size) ++depth;
    EXPECT_LE(*std::max_element(at.begin(), at.end()), 2 * depth) << size;
    EXPECT_GE(*std::max_element(at.begin(), at.end()), depth) << size;
    int64_t messages = 0;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(BroadcastBytes({rank, size}, 0, 92), 100 * sent[rank]) << rank << " of " << size;
      messages += sent[rank];
    }
    EXPECT_EQ(messages, size - 1);
  }
}

}  // namespace
}  // namespace shiftrt
