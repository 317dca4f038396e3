#pragma once

// Register budget of a warpgroup (sm_90a, setmaxnreg): the producer gives registers back, the consumers take them.

namespace vcattn::ptx {

template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace vcattn::ptx
