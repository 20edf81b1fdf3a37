// In a build without the CUDA toolkit chooseDevice() never ends at CUDA, so nobody asks for this engine.
#include "lib/engine.h"

namespace fccl {

std::unique_ptr<Engine> makeCudaEngine(host::World&, const Options&, int) { return nullptr; }

}  // namespace fccl
