// SPDX-License-Identifier: Apache-2.0
#include "runtime/context.h"

#include <sched.h>

#include <cstdlib>
#include <thread>

#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

TEST(Context, NamesOfInstructionSets) {
  for (const Isa isa : kIsas) {
    if (isa <= BestIsa()) {
      EXPECT_EQ(ParseIsa(Name(isa)), isa);
    } else {
      EXPECT_THROW(ParseIsa(Name(isa)), UsageError);
    }
  }
  for (const char* word : {"", "AVX2", "avx", "avx2 ", "sse"}) EXPECT_THROW(ParseIsa(word), UsageError) << word;
}

TEST(Context, TheEnvironmentLowersTheInstructionSet) {
  ::setenv("SHIFTRT_ISA", "portable", 1);
  EXPECT_EQ(Context::Default().isa, Isa::kPortable);
  ::setenv("SHIFTRT_ISA", "nonsense", 1);
  EXPECT_THROW(Context::Default(), UsageError);
  ::unsetenv("SHIFTRT_ISA");
  EXPECT_EQ(Context::Default().isa, BestIsa());
  EXPECT_EQ(Context::Default().threads, Cores());
}

TEST(Context, CoresAreThoseOfTheAffinity) {
  EXPECT_GE(Cores(), 1);
  int cores = 0;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    cores = Cores();
  }).join();
  EXPECT_EQ(cores, 1);
}

TEST(Context, ReducedPrecisionIsThatOfTheCpuUnlessOneIsAskedFor) {
  Context context{.threads = 1, .isa = Isa::kAvx512};
  EXPECT_EQ(context.ReducedPrecision().products, Products::kFloat32);
  for (const Isa isa : {Isa::kAvx512BFloat16, Isa::kAmx}) {
    context.isa = isa;
    context.products = Products::kAuto;
    EXPECT_EQ(context.ReducedPrecision().products, Products::kBFloat16);
    context.products = Products::kFloat32;
    EXPECT_EQ(context.ReducedPrecision().products, Products::kFloat32);
  }
  context.products = Products::kAuto;
  context.device = Device::kCuda;
  EXPECT_EQ(context.ReducedPrecision().products, Products::kAuto);
}

}  // namespace
}  // namespace shiftrt
