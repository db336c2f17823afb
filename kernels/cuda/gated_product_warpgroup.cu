// SPDX-License-Identifier: Apache-2.0
// Gate and up projections and the activation, by the tensor cores of compute capability 9.0. One thread copies tiles of
// x and of both weights, four steps ahead. Two warpgroups, with 64 tokens each, multiply them. A block goes on to its
// next tile of the output by itself, so the copies for that tile start while this one is activated and stored.
#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/warp.cuh"
#include "runtime/cuda/switches.h"

namespace shiftrt::gpu {

namespace {

template <typename T, bool kGelu>
struct GatedProductKernel {
  static constexpr bool kHopper = true;
  static constexpr int kGroups = 2, kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarpSize, kGroupTokens = 64;
  // A third warpgroup, of which one thread copies. It starts with 168 of the 65,536 registers per thread, as the others
  // do, and leaves them all but 24.
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kCopyRegisters = 24, kMultiplyRegisters = 240;
  // A step multiplies 64 hidden columns: a tile of x, one of Wg and one of Wu, of 128 rows each.
  static constexpr int kStages = 4, kTile = kGatedTile * kBoxColumns;
  static constexpr int kStepBytes = 3 * kTile * static_cast<int>(sizeof(T));
  static_assert(kGroups * kGroupTokens == kGatedTile);
  static constexpr int kShared = 3 * kStages * SharedBytes<T>(kTile) + SharedBytes<Mbarrier>(2 * kStages);
  static_assert(kShared <= kHopperSharedBytes);
  struct Args {
    BoxMap x, gate_up;
    const float* bias;  // may be null
    T* out;
    int tokens, intermediate;
    int steps;  // steps per tile
    int token_tiles, column_tiles;
  };

  struct Memory {
    Shared<T> x, gate, up;  // kStages tiles each
    // Full: the tiles of a step have arrived. Free: all warps have multiplied them.
    Shared<Mbarrier> full, free;
  };
  // The steps of all tiles of a block are counted on, and take the stages and the phases of their mbarriers in turn.
  static SHIFTRT_DEVICE int Stage(int step) { return step % kStages; }
  static SHIFTRT_DEVICE uint32_t Parity(int step) { return step / kStages % 2; }
  // A lane's part of the product of 64 tokens and 128 columns.
  using Sums = float[kGatedTile / 2];

  template <typename Body>
  static SHIFTRT_DEVICE void ForEachTile(const Args& args, Body&& body) {
#pragma unroll 1
    for (int tile = Block().x; tile < args.token_tiles * args.column_tiles; tile += GridBlocks().x)
      body(GatedTileAt(tile, args.token_tiles, args.column_tiles));
  }

  static SHIFTRT_DEVICE void Copy(const Args& args, const Memory& memory) {
    int step = 0;
    ForEachTile(args, [&](const GatedTile& at) {
#pragma unroll 1
      for (int i = 0; i < args.steps; ++i, ++step) {
        const int to = Stage(step) * kTile, column = i * kBoxColumns;
        const Shared<Mbarrier> full = memory.full + Stage(step);
        WaitMbarrier(memory.free + Stage(step), Parity(step) ^ 1);
        ArriveExpecting(full, kStepBytes);
        CopyBox(memory.x + to, args.x, at.tokens, column, full);
        // After the last row of Wg come rows of Wu, and after those nothing. Their columns are not stored.
        CopyBox(memory.gate + to, args.gate_up, at.columns, column, full);
        CopyBox(memory.up + to, args.gate_up, args.intermediate + at.columns, column, full);
      }
    });
  }

  // A warp's products are complete before those of the other warps are, so every warp arrives.
  static SHIFTRT_DEVICE void Release(Shared<Mbarrier> free) {
    if (Lane() == 0) Arrive(free);
  }

  // gate and up (64 x 128 each) = the products of the step's tiles, or += if `add`.
  static SHIFTRT_DEVICE void MultiplyStep(const Memory& memory, int stage, int group, bool add, Sums& gate, Sums& up) {
    const Shared<T> x = memory.x + stage * kTile + group * kGroupTokens * kBoxColumns;
#pragma unroll
    for (int k = 0; k < kBoxColumns; k += 16) {
      MultiplyTiles<T>(gate, RowsTile(x + k), RowsTile(memory.gate + stage * kTile + k), add || k > 0);
      MultiplyTiles<T>(up, RowsTile(x + k), RowsTile(memory.up + stage * kTile + k), add || k > 0);
    }
    CommitProducts();
  }

  // `bias` is that of the tile's first column, `left` the number of columns from there on.
  static SHIFTRT_DEVICE void AddBias(const float* bias, int left, Sums& sums) {
#pragma unroll
    for (int n = 0; n < kGatedTile / 8; ++n) {
      const int column = 8 * n + 2 * (Lane() % 4);
      if (column >= left) continue;
      const float low = bias[column], high = bias[column + 1];
      sums[4 * n] += low, sums[4 * n + 1] += high;
      sums[4 * n + 2] += low, sums[4 * n + 3] += high;
    }
  }

  static SHIFTRT_DEVICE float Gated(float gate, float up) { return (kGelu ? GeluTanh(gate) : Silu(gate)) * up; }

  // A lane has two of each eight columns of a row. Four lanes exchange theirs, so that each stores 16 bytes, and all
  // four 64 adjacent ones.
  static SHIFTRT_DEVICE void Store(const Args& args, const GatedTile& at, int group, const Sums& gate, const Sums& up) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = at.tokens + kGroupTokens * group + 16 * (Warp() % kGroupWarps) + Lane() / 4 + 8 * half;
#pragma unroll
      for (int n = 0; n < kGatedTile / 8; n += 4) {
        uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = 4 * (n + j) + 2 * half;
          pairs[j] = Pack2<T>(Gated(gate[i], up[i]), Gated(gate[i + 1], up[i + 1]));
        }
        TransposeInFours(pairs);
        const int column = at.columns + 8 * (n + Lane() % 4);
        if (token < args.tokens && column < args.intermediate)
          StorePairs(args.out + static_cast<int64_t>(token) * args.intermediate + column, pairs);
      }
    }
  }

  static SHIFTRT_DEVICE void Multiply(const Args& args, const Memory& memory, int group) {
    Sums gate, up;
    int step = 0;
    ForEachTile(args, [&](const GatedTile& at) {
#pragma unroll 1
      for (int i = 0; i < args.steps; ++i, ++step) {
        WaitMbarrier(memory.full + Stage(step), Parity(step));
        FenceProducts(gate, up);
        MultiplyStep(memory, Stage(step), group, i > 0, gate, up);
        WaitProducts<1>();  // those of the step before
        if (i > 0) Release(memory.free + Stage(step - 1));
      }
      WaitProducts<0>(gate, up);
      Release(memory.free + Stage(step - 1));
      if (args.bias != nullptr) {
        const int left = args.intermediate - at.columns;
        AddBias(args.bias + at.columns, left, gate);
        AddBias(args.bias + args.intermediate + at.columns, left, up);
      }
      Store(args, at, group, gate, up);
    });
  }

  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    Memory memory;
    memory.x = arena.Take<T>(kStages * kTile);
    memory.gate = arena.Take<T>(kStages * kTile);
    memory.up = arena.Take<T>(kStages * kTile);
    memory.full = arena.Take<Mbarrier>(2 * kStages);
    memory.free = memory.full + kStages;
    if (Thread() == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        InitMbarrier(memory.full + stage, 1);
        InitMbarrier(memory.free + stage, kGroups * kGroupWarps);
      }
      FenceMbarriers();
    }
    SyncThreads();
    const int warp = Shuffle(Warp(), 0);  // the compiler then knows that it is the same in all lanes
    if (warp / kGroupWarps == kGroups) {
      GiveRegisters<kCopyRegisters>();
      if (warp % kGroupWarps == 0 && Lane() == 0) Copy(args, memory);
    } else {
      TakeRegisters<kMultiplyRegisters>();
      Multiply(args, memory, warp / kGroupWarps);
    }
  }
};

constexpr const char* kSwitch = "SHIFTRT_CUDA_GATED_PRODUCT";

template <bool kGelu>
void LaunchGated(Stream stream, const GatedProduct& call) {
  constexpr const char* kWhat = "gate and up projections in one kernel";
  Require(call.gate_up.dtype == call.x.dtype && call.out.dtype == call.x.dtype, kWhat,
          "one type for input, weights and output, not bytes", static_cast<int64_t>(SizeOf(call.out.dtype)));
  Require(TakesGatedProduct(stream.device, call.x.dtype, call.hidden, call.intermediate), kWhat,
          "compute capability 9.0 without SHIFTRT_CUDA_WGMMA=0 or SHIFTRT_CUDA_GATED_PRODUCT=0, bfloat16 or float16, "
          "an intermediate size that is a multiple of 8, and a hidden size that is a multiple of 64",
          call.hidden);
  if (call.tokens == 0) return;
  const auto launch = [&](auto type) {
    using T = decltype(type);
    using Kernel = GatedProductKernel<T, kGelu>;
    const BoxMap x = MapBoxes(EncodeBoxes(call.x, call.tokens, call.hidden, kGatedTile)),
                 gate_up = MapBoxes(EncodeBoxes(call.gate_up, 2 * call.intermediate, call.hidden, kGatedTile));
    const int token_tiles = Blocks(call.tokens, kGatedTile), column_tiles = Blocks(call.intermediate, kGatedTile);
    const int tiles = token_tiles * column_tiles;
    Launch<Kernel>(
        stream, {.x = tiles < call.multiprocessors ? tiles : call.multiprocessors, .shared_bytes = Kernel::kShared},
        {x, gate_up, call.bias, static_cast<T*>(call.out.data), static_cast<int>(call.tokens),
         static_cast<int>(call.intermediate), static_cast<int>(call.hidden / kBoxColumns), token_tiles, column_tiles});
  };
  if (call.x.dtype == DType::kBFloat16) return launch(BFloat16());
  launch(Float16());
}

}  // namespace

bool TakesGatedProduct(int device, DType dtype, int64_t hidden, int64_t intermediate) {
  return SizeOf(dtype) == 2 && hidden > 0 && hidden % kBoxColumns == 0 && intermediate > 0 && intermediate % 8 == 0 &&
         SwitchedOn(kSwitch, true) && RunsWarpgroupProducts(device);
}

bool WantsGatedProduct() { return SwitchedOn(kSwitch, false); }

void MultiplyGated(Stream stream, Activation activation, const GatedProduct& call) {
  (activation == Activation::kSilu ? LaunchGated<false> : LaunchGated<true>)(stream, call);
}

}  // namespace shiftrt::gpu
