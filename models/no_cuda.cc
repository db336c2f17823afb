#include "models/engine.h"
#include "models/tally.h"
#include "runtime/check.h"
#include "runtime/cuda.h"

namespace shiftrt {

std::unique_ptr<Engine> MakeCudaEngine(const EngineSetup&) { Fail("CUDA: {}", gpu::WhyUnavailable()); }
std::unique_ptr<Tally> MakeCudaTally(const Context&, const Weights&) { Fail("CUDA: {}", gpu::WhyUnavailable()); }

}  // namespace shiftrt
