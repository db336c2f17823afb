#include "engine/engine.h"
#include "engine/tally.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

std::unique_ptr<Engine> MakeCudaEngine(const EngineSetup&) { Fail("CUDA: {}", gpu::WhyUnavailable()); }
std::unique_ptr<Tally> MakeCudaTally(const Context&, const Weights&) { Fail("CUDA: {}", gpu::WhyUnavailable()); }

}  // namespace shiftrt
