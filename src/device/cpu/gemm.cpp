#include "device/cpu/gemm.hpp"

namespace vcattn::device::cpu {

namespace baseline {
extern GemmKernels const kGemmKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern GemmKernels const kGemmKernels;
}
namespace avx512 {
extern GemmKernels const kGemmKernels;
}
#endif

GemmKernels const& gemm_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return avx2::kGemmKernels;
  if (isa == Isa::avx512) return avx512::kGemmKernels;
#endif
  (void)isa;
  return baseline::kGemmKernels;
}

}  // namespace vcattn::device::cpu
