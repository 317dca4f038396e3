#pragma once

// Query tiles whose keys are shared out among CTAs. Every CTA leaves the sums of its part in global memory; a second kernel adds the parts
// up in the order of their keys and writes the output.

#include "attention/sm90a/epilogue.cuh"
#include "attention/sm90a/scheduler.cuh"
#include "attention/sm90a/softmax.cuh"

namespace vcattn::attention_sm90a {

/// What the threads of a CTA know of its part of a query tile.
template <class C>
struct Part {
  float4 sums[C::kOutRegisters / 4][C::kConsumers * kWarpgroupThreads];
  float4 rows[C::kConsumers * kWarpgroupThreads];  // constant and sum of row 0 and of row 1

  static_assert(C::kPartBytes == (C::kOutRegisters / 4 + 1) * C::kConsumers * kWarpgroupThreads * sizeof(float4));
};

/// Where CTA `cta` leaves its part of an item. From a part to the next one the CTA or the item grows: no place is used twice.
template <class C>
__device__ __forceinline__ Part<C>& part_of(KernelParams const& p, unsigned cta, int item) {
  return static_cast<Part<C>*>(p.parts)[cta + static_cast<unsigned>(item)];
}

template <class C>
__device__ __forceinline__ void store_part(Part<C>& part, RowState const (&row)[2], float const (&acc)[C::kAccRegisters], int thread) {
#pragma unroll
  for (int k = 0; k < C::kOutRegisters / 4; ++k) part.sums[k][thread] = {acc[4 * k], acc[4 * k + 1], acc[4 * k + 2], acc[4 * k + 3]};
  part.rows[thread] = {row[0].constant, row[0].sum, row[1].constant, row[1].sum};
}

/// CTA (n, w): the rows of warpgroup w of the n-th split item, by the threads that would have had them.
template <class C>
__global__ void __launch_bounds__(kWarpgroupThreads) join_parts_kernel(__grid_constant__ KernelParams const p) {
  LastWave const wave = plan_last_wave<C>(p, gridDim.x);
  auto const item = static_cast<int>(blockIdx.x);
  if (item >= wave.items) return;
  unsigned const begin = blockIdx.x * wave.key_tiles;
  unsigned const end = begin + wave.key_tiles;
  unsigned first = begin / (wave.share + 1);  // no CTA before this one can reach `begin`
  while (wave.begin(first + 1) <= begin) ++first;

  auto const warpgroup = static_cast<int>(blockIdx.y);
  int const thread = warpgroup * kWarpgroupThreads + static_cast<int>(threadIdx.x);
  RowState row[2];
  for (unsigned cta = first; wave.begin(cta) < end; ++cta) {  // the largest maximum has the smallest constant
    if (wave.begin(cta) == wave.begin(cta + 1)) continue;
    float4 const rows = part_of<C>(p, cta, item).rows[thread];
    row[0].constant = fminf(row[0].constant, rows.x);
    row[1].constant = fminf(row[1].constant, rows.z);
  }
  float acc[C::kAccRegisters] = {};
  for (unsigned cta = first; wave.begin(cta) < end; ++cta) {
    if (wave.begin(cta) == wave.begin(cta + 1)) continue;
    Part<C> const& part = part_of<C>(p, cta, item);
    float4 const rows = part.rows[thread];
    float const upper = ptx::exp2_approximate((row[0].constant - rows.x) * 0.125f);  // [EQ-RESCALE]
    float const lower = ptx::exp2_approximate((row[1].constant - rows.z) * 0.125f);
    row[0].sum = __fmaf_rn(rows.y, upper, row[0].sum);
    row[1].sum = __fmaf_rn(rows.w, lower, row[1].sum);
#pragma unroll
    for (int k = 0; k < C::kOutRegisters / 4; ++k) {
      float4 const sums = part.sums[k][thread];
      acc[4 * k] = __fmaf_rn(sums.x, upper, acc[4 * k]);
      acc[4 * k + 1] = __fmaf_rn(sums.y, upper, acc[4 * k + 1]);
      acc[4 * k + 2] = __fmaf_rn(sums.z, lower, acc[4 * k + 2]);
      acc[4 * k + 3] = __fmaf_rn(sums.w, lower, acc[4 * k + 3]);
    }
  }
  Work work;
  WorkList<C>(p, wave).find(wave.first_item + item, work);
  write_rows<C>(p, work, work.row_begin + row_of_thread(warpgroup), row, acc);
}

}  // namespace vcattn::attention_sm90a
