#include "attention/cpu/softmax_tile.hpp"

namespace vcattn::attention_cpu {

namespace baseline {
extern SoftmaxKernels const kSoftmaxKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern SoftmaxKernels const kSoftmaxKernels;
}
namespace avx512 {
extern SoftmaxKernels const kSoftmaxKernels;
}
#endif

SoftmaxKernels const& softmax_kernels(device::cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == device::cpu::Isa::avx2) return avx2::kSoftmaxKernels;
  if (isa == device::cpu::Isa::avx512) return avx512::kSoftmaxKernels;
#endif
  (void)isa;
  return baseline::kSoftmaxKernels;
}

}  // namespace vcattn::attention_cpu
