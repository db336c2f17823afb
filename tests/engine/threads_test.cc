// SPDX-License-Identifier: Apache-2.0
// Several threads work with one model. Built with ThreadSanitizer, which reports two threads that touch the same memory
// with nothing between them.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "engine/decoder.h"
#include "runtime/check.h"
#include "runtime/device_copies.h"
#include "tests/engine/rows.h"
#include "tests/models/fixtures.h"

namespace shiftrt {
namespace {

constexpr int kThreads = 2;

void OnThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// A pass over a batch and a few decoded tokens.
std::vector<float> Computed(const Context& context, std::shared_ptr<const Weights> weights, const DepthPlan& plan) {
  Decoder decoder(context, weights, plan);
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  Batch batch;
  batch.Add(tokens);
  const Matrix<float> h = test::Copied(decoder.Forward(batch));
  std::vector<float> out(h.span().begin(), h.span().end());
  KvCache cache(weights->config, plan, 20);
  int32_t token = decoder.NextToken(tokens, cache, {}, 0);
  for (int i = 0; i < 5; ++i) {
    out.push_back(static_cast<float>(token));
    token = decoder.NextToken(std::span(&token, 1), cache, {}, 0);
  }
  return out;
}

TEST(Threads, DecodersOverTheSameWeightsRunAtTheSameTime) {
  const auto weights = GoldenWeights("llama3_tied");
  const Context context{.threads = 1, .isa = BestIsa()};
  const std::vector<int64_t> second = {1};
  const DepthPlan plans[kThreads] = {DepthPlan::Original(weights->config.layers),
                                     DepthPlan::Pruned(weights->config.layers, second)};
  std::vector<float> alone[kThreads], together[kThreads];
  for (int i = 0; i < kThreads; ++i) alone[i] = Computed(context, weights, plans[i]);
  OnThreads([&](int i) {
    for (int again = 0; again < 3; ++again) together[i] = Computed(context, weights, plans[i]);
  });
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(together[i], alone[i]);
}

// Stands for what a GPU's memory has.
struct Copy {
  explicit Copy(int from) : value(from) {}
  int value;
};

TEST(Threads, ACopyIsMadeOnce) {
  const Context context{}, same = context;
  const auto source = std::make_shared<const int>(7);
  std::atomic<int> made = 0;
  std::shared_ptr<Copy> copies[kThreads];
  OnThreads([&](int i) {
    copies[i] = (i == 0 ? context : same).device_copies->Get<Copy>(source, 0, [&] {
      ++made;
      return std::make_shared<Copy>(*source);
    });
  });
  EXPECT_EQ(made, 1);
  EXPECT_EQ(copies[0], copies[1]);
  EXPECT_EQ(copies[0]->value, 7);
}

}  // namespace
}  // namespace shiftrt
