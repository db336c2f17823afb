#include "runtime/context.h"

#include <cstdlib>
#include <vector>

#include "runtime/parallel.h"
#include "tests/runtime/refusal.h"

namespace shiftrt {
namespace {

TEST(Context, NamesOfInstructionSets) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
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
  EXPECT_GE(Context::Default().threads, 1);
}

TEST(ParallelFor, CoversEachIndexOnceInRangesNoShorterThanTheGrain) {
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 16, 2000}) {
      for (const int threads : {1, 2, 3, 5}) {
        std::vector<int> visits(n, 0);
        std::vector<int64_t> lengths(n, 0);
        ParallelFor(Context{threads, Isa::kPortable}, n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
          lengths[begin] = end - begin;
        });
        EXPECT_EQ(visits, std::vector<int>(n, 1)) << n << " " << grain << " " << threads;
        int ranges = 0;
        for (const int64_t length : lengths) {
          ranges += length > 0;
          EXPECT_TRUE(length == 0 || length >= std::min(n, grain)) << n << " " << grain << " " << threads;
        }
        EXPECT_LE(ranges, threads);
      }
    }
  }
}

}  // namespace
}  // namespace shiftrt
