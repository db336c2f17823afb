// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sample.h"
#include "kernels/cuda/warp.cuh"

namespace shiftrt::gpu {

namespace {

constexpr double kUnits = 0x1p43;  // the weight of the likeliest token; 2^20 tokens of that weight add up to 2^63
constexpr int kLevels = 3, kBins = 2048;
// The digits of a rank have 11, 11 and 10 bits. `level` 0 is the leading digit.
constexpr int Shift(int level) { return level == 0 ? 21 : level == 1 ? 10 : 0; }
constexpr int DigitBits(int level) { return (level == 0 ? 32 : Shift(level - 1)) - Shift(level); }

// Tokens are ordered by their logits, the largest first, and equal logits by their ids. The rank of a token is an
// unsigned number with this order; equal logits have equal ranks.
SHIFTRT_DEVICE uint32_t Rank(float logit) {
  constexpr uint32_t kSign = 0x80000000u;
  const uint32_t bits = Bits(logit + 0.0f);  // -0 is 0
  return (bits & kSign) != 0 ? bits : ~bits & ~kSign;
}

// The number of some tokens and the sum of their weights.
struct Mass {
  uint32_t count = 0;
  uint64_t weight = 0;
};
enum class By { kCount, kWeight };
template <By kBy>
SHIFTRT_DEVICE uint64_t Measure(const Mass& mass) {
  return kBy == By::kCount ? mass.count : mass.weight;
}

// One mass per value of a digit of the rank. A weight is added in two halves, because atomic additions in shared memory
// have 32 bits.
struct Bins {
  Shared<uint32_t> counts, low, high;

  static constexpr int kShared = 3 * SharedBytes<uint32_t>(kBins);
  SHIFTRT_DEVICE explicit Bins(SharedArena& arena)
      : counts(arena.Take<uint32_t>(kBins)), low(arena.Take<uint32_t>(kBins)), high(arena.Take<uint32_t>(kBins)) {}
  SHIFTRT_DEVICE void Clear(int bin) const { Set(bin, {}); }
  SHIFTRT_DEVICE void Set(int bin, const Mass& mass) const {
    counts[bin] = mass.count;
    low[bin] = static_cast<uint32_t>(mass.weight);
    high[bin] = static_cast<uint32_t>(mass.weight >> 32);
  }
  SHIFTRT_DEVICE void Add(int bin, uint64_t weight) const {
    AtomicAdd(counts + bin, 1);
    const auto low_half = static_cast<uint32_t>(weight);
    const uint32_t before = AtomicAdd(low + bin, low_half);
    const uint32_t carry = before + low_half < before ? 1 : 0;
    const uint32_t high_half = static_cast<uint32_t>(weight >> 32) + carry;
    if (high_half != 0) AtomicAdd(high + bin, high_half);
  }
  SHIFTRT_DEVICE Mass Get(int bin) const {
    return {counts[bin], static_cast<uint64_t>(high[bin]) << 32 | static_cast<uint64_t>(low[bin])};
  }
};

// Global memory through which the blocks exchange their results. Sums are of integers, so that atomic additions give
// the same ones in any order. Every time the blocks add up masses, they use other bins.
struct Exchange {
  static constexpr int kFills = 1 + 3 * (kLevels - 1);  // the leading digit, and the others for each of three searches
  uint64_t* weights;                                    // (kFills, kBins)
  Best* likeliest;                                      // (blocks)
  uint32_t *counts, *equals;                            // (kFills, kBins); (blocks)

  static constexpr int64_t Size(int blocks) { return int64_t{kFills} * kBins * 3 / 2 + 2 * blocks; }
  static Exchange Of(uint64_t* scratch, int blocks) {
    auto* const likeliest = reinterpret_cast<Best*>(scratch + kFills * kBins);
    auto* const counts = reinterpret_cast<uint32_t*>(likeliest + blocks);
    return {scratch, likeliest, counts, counts + kFills * kBins};
  }
};

// The tokens are divided between the blocks to compute the masses. Then every block does the same search and finds the
// same result. The tokens are never sorted: the search finds, digit by digit, the rank at which the running sum of the
// masses exceeds a target.
struct SampleKernel {
  static constexpr int kThreads = 512, kWarps = kThreads / kWarpSize, kOwnBins = kBins / kThreads;
  struct Args {
    const float* logits;
    int vocab;
    const SampleRequest* request;
    Exchange exchange;
    int32_t* token;
  };
  struct Work {
    int begin, end;    // this block's tokens
    Bins first, next;  // masses by the first digit, used by every search, and by a later digit
    Shared<uint32_t> counts, found;
    Shared<uint64_t> weights, found_weight;
    Shared<float> values;
    Shared<int32_t> indices;

    SHIFTRT_DEVICE Work(SharedArena& arena, int vocab)
        : first(arena),
          next(arena),
          counts(arena.Take<uint32_t>(kWarps)),
          found(arena.Take<uint32_t>(2)),
          weights(arena.Take<uint64_t>(kWarps)),
          found_weight(arena.Take<uint64_t>(1)),
          values(arena.Take<float>(kWarps)),
          indices(arena.Take<int32_t>(kWarps)) {
      const int share = (vocab + GridBlocks().x - 1) / GridBlocks().x;
      begin = Block().x * share < vocab ? Block().x * share : vocab;
      end = begin + share < vocab ? begin + share : vocab;
    }
  };
  static constexpr int kShared = 2 * Bins::kShared + SharedBytes<uint32_t>(kWarps) + SharedBytes<uint32_t>(2) +
                                 SharedBytes<uint64_t>(kWarps) + SharedBytes<uint64_t>(1) + SharedBytes<float>(kWarps) +
                                 SharedBytes<int32_t>(kWarps);

  // A NaN is treated as an infinity that precedes all tokens. It is therefore chosen, with an id of -1.
  static SHIFTRT_DEVICE Best Likeliest(const Args& args, const Work& work) {
    Best best{-Infinity(), 0};
    for (int i = work.begin + Thread(); i < work.end; i += kThreads) {
      const float logit = args.logits[i];
      best = Better(best, logit == logit ? Best{logit, i} : Best{Infinity(), -1});
    }
    best = BlockBest<kThreads>(best, work.values, work.indices);
    if (Thread() == 0) args.exchange.likeliest[Block().x] = best;
    for (int b = Block().x * kThreads + Thread(); b < Exchange::kFills * kBins; b += GridBlocks().x * kThreads) {
      args.exchange.weights[b] = 0;
      args.exchange.counts[b] = 0;
    }
    SyncGrid();
    best = {-Infinity(), 0};
    for (int b = Thread(); b < GridBlocks().x; b += kThreads) best = Better(best, args.exchange.likeliest[b]);
    return BlockBest<kThreads>(best, work.values, work.indices);
  }

  // The state of a search: the leading digits of the rank, and the mass of all tokens before the ranks with these
  // digits.
  struct Search {
    uint32_t prefix = 0;
    Mass before;
  };
  struct Scale {
    double largest, temperature;
    SHIFTRT_DEVICE uint64_t Weigh(float logit) const {
      return static_cast<uint64_t>(Exp((static_cast<double>(logit) - largest) / temperature) * kUnits + 0.5);
    }
  };

  // Fills `bins` with the masses, by the digit of `level`, of the ranks that begin with `prefix`. `which`: the bins of
  // the exchange for it.
  static SHIFTRT_DEVICE void Fill(const Args& args, const Scale& scale, int level, uint32_t prefix, const Work& work,
                                  const Bins& bins, int which) {
    for (int b = Thread(); b < kBins; b += kThreads) bins.Clear(b);
    SyncThreads();
    const int shift = Shift(level), bits = DigitBits(level);
    for (int i = work.begin + Thread(); i < work.end; i += kThreads) {
      const float logit = args.logits[i];
      const uint32_t leading = Rank(logit) >> shift, mask = (1u << bits) - 1;
      if (level == 0 || leading >> bits == prefix) bins.Add(static_cast<int>(leading & mask), scale.Weigh(logit));
    }
    SyncThreads();
    AddUp(args.exchange, which, bins);
  }

  // Replaces the bins of every block by the sum over all blocks. The barrier of the grid orders all additions, which
  // need no order among themselves, before the loads. Most bins are empty.
  static SHIFTRT_DEVICE void AddUp(const Exchange& exchange, int which, const Bins& bins) {
    uint32_t* const counts = exchange.counts + which * kBins;
    uint64_t* const weights = exchange.weights + which * kBins;
    for (int b = Thread(); b < kBins; b += kThreads) {
      const Mass mass = bins.Get(b);
      if (mass.count != 0) AtomicAdd(counts + b, mass.count);
      if (mass.weight != 0) AtomicAdd(weights + b, mass.weight);
    }
    SyncGrid();
    for (int b = Thread(); b < kBins; b += kThreads) bins.Set(b, {counts[b], weights[b]});
    SyncThreads();
  }

  // Extends the search by one digit: that of the bin in which the running sum exceeds `target`.
  template <By kBy>
  static SHIFTRT_DEVICE void Follow(const Bins& bins, int level, uint64_t target, const Work& work, Search& search) {
    Mass own;
    for (int b = Thread() * kOwnBins; b < (Thread() + 1) * kOwnBins; ++b) {
      own.count += bins.Get(b).count;
      own.weight += bins.Get(b).weight;
    }
    Mass sum{search.before.count + BlockSumBefore(own.count, work.counts),
             search.before.weight + BlockSumBefore(own.weight, work.weights)};
    for (int b = Thread() * kOwnBins; b < (Thread() + 1) * kOwnBins; ++b) {
      const Mass mass = bins.Get(b), through{sum.count + mass.count, sum.weight + mass.weight};
      if (Measure<kBy>(sum) <= target && target < Measure<kBy>(through)) {
        work.found[0] = static_cast<uint32_t>(b);
        work.found[1] = sum.count;
        work.found_weight[0] = sum.weight;
      }
      sum = through;
    }
    SyncThreads();
    search = {search.prefix << DigitBits(level) | work.found[0], {work.found[1], work.found_weight[0]}};
  }

  // The first token at which the running sum exceeds `target`, which is less than the sum of all tokens.
  struct Place {
    uint32_t rank, among_equals;  // among_equals: the number of tokens of the same rank before it
    uint64_t through;             // the sum of the weights up to and including it
  };
  // `search_number`: 0, 1 or 2, each once in a launch.
  template <By kBy>
  static SHIFTRT_DEVICE Place Find(const Args& args, const Scale& scale, uint64_t target, const Work& work,
                                   int search_number) {
    Search search;
    Follow<kBy>(work.first, 0, target, work, search);
    for (int level = 1; level < kLevels; ++level) {
      Fill(args, scale, level, search.prefix, work, work.next, search_number * (kLevels - 1) + level);
      Follow<kBy>(work.next, level, target, work, search);
    }
    const Mass equals = work.next.Get(static_cast<int>(search.prefix & ((1u << DigitBits(kLevels - 1)) - 1)));
    const uint64_t each = equals.weight / equals.count, left = target - Measure<kBy>(search.before);
    const uint64_t nth = kBy == By::kCount ? left : left / each;
    SyncThreads();  // after this, the bins may change
    return {search.prefix, static_cast<uint32_t>(nth), search.before.weight + (nth + 1) * each};
  }

  // Writes the id of the token at that place. Each thread searches a range of consecutive ids.
  static SHIFTRT_DEVICE void Name(const Args& args, const Place& place, const Work& work) {
    const int share = (work.end - work.begin + kThreads - 1) / kThreads, begin = work.begin + Thread() * share;
    const int end = begin + share < work.end ? begin + share : work.end;
    uint32_t count = 0;
    for (int i = begin; i < end; ++i) count += Rank(args.logits[i]) == place.rank ? 1 : 0;
    uint32_t at = BlockSumBefore(count, work.counts);
    if (Thread() == kThreads - 1) args.exchange.equals[Block().x] = at + count;
    SyncGrid();
    for (int b = 0; b < Block().x; ++b) at += args.exchange.equals[b];
    for (int i = begin; i < end; ++i)
      if (Rank(args.logits[i]) == place.rank && at++ == place.among_equals) *args.token = i;
  }

  // The target that is exceeded by the first token at which the running sum is at least this share of `whole`.
  static SHIFTRT_DEVICE uint64_t TargetOfShare(double share, uint64_t whole) {
    const double least = share * static_cast<double>(whole);
    const auto rounded = static_cast<uint64_t>(least > 0 ? least : 0);
    return rounded > 0 && static_cast<double>(rounded) >= least ? rounded - 1 : rounded;
  }
  static SHIFTRT_DEVICE uint64_t Within(uint64_t target, uint64_t whole) { return target < whole ? target : whole - 1; }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Work work(arena, args.vocab);
    const SampleRequest request = *args.request;
    const Best likeliest = Likeliest(args, work);
    if (request.temperature <= 0 || likeliest.value == Infinity() || likeliest.value == -Infinity()) {
      if (Block().x == 0 && Thread() == 0) *args.token = likeliest.index;
      return;
    }
    const Scale scale{static_cast<double>(likeliest.value), request.temperature};
    Fill(args, scale, 0, 0, work, work.first, 0);
    uint64_t kept = 0;
    for (int b = Thread(); b < kBins; b += kThreads) kept += work.first.Get(b).weight;
    kept = BlockSum<kThreads>(kept, work.weights);
    SyncThreads();
    if (request.top_k > 0 && request.top_k < args.vocab)
      kept = Find<By::kCount>(args, scale, static_cast<uint64_t>(request.top_k - 1), work, 0).through;
    if (request.top_p < 1) {
      const uint64_t target = Within(TargetOfShare(request.top_p, kept), kept);
      kept = Find<By::kWeight>(args, scale, target, work, 1).through;
    }
    const auto draw = static_cast<uint64_t>(request.uniform * static_cast<double>(kept));
    Name(args, Find<By::kWeight>(args, scale, Within(draw, kept), work, 2), work);
  }
};

struct ChosenStepKernel {
  static constexpr int kThreads = 32;
  struct Args {
    ChosenStep step;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    if (Thread() != 0) return;
    const ChosenStep& step = args.step;
    const int32_t chosen = *step.chosen;
    step.numbers[0] = chosen < 0 ? 0 : chosen;
    step.numbers[1] = step.rotation;
    step.numbers[2] = step.first_row + step.position;
    step.numbers[3] = step.first_row;
    step.numbers[4] = step.position + 1;
    *step.request = step.asked;
  }
};

}  // namespace

int SampleBlocks(int64_t vocab, int multiprocessors) {
  const int useful = Blocks(vocab, 2 * SampleKernel::kThreads);
  return useful < multiprocessors ? useful : multiprocessors;
}

int64_t SampleScratch(int64_t vocab, int multiprocessors) {
  return Exchange::Size(SampleBlocks(vocab, multiprocessors));
}

void SampleToken(Stream stream, const float* logits, int64_t vocab, const SampleRequest* request, int multiprocessors,
                 uint64_t* scratch, int32_t* token) {
  Require(vocab > 0 && vocab <= kMaxSampledVocab, "sampling", "a vocabulary of 1 to 2^20", vocab);
  const int blocks = SampleBlocks(vocab, multiprocessors);
  Launch<SampleKernel>(stream, {.x = blocks, .shared_bytes = SampleKernel::kShared, .cooperative = true},
                       {logits, static_cast<int>(vocab), request, Exchange::Of(scratch, blocks), token});
}

void StepOnChosen(Stream stream, const ChosenStep& step) { Launch<ChosenStepKernel>(stream, {}, {step}); }

}  // namespace shiftrt::gpu
