// One kernel instance for the emulator, compiled to PTX, and what its reports call the parts of shared memory.

#include <cstddef>

#include "attention/sm90a/kernel.cuh"
#include "attention/sm90a/split.cuh"

namespace vcattn::attention_sm90a {

using Config = TileConfig<Scores::VCATTN_SCORES, Probabilities::VCATTN_PROBABILITIES, VCATTN_HEAD_DIM>;
template __global__ void attention_kernel<Config>(__grid_constant__ KernelParams const p);
template __global__ void join_parts_kernel<Config>(__grid_constant__ KernelParams const p);

struct Range {
  unsigned offset, bytes;
  char name[24];
};

constexpr int kMostRanges = 40;
struct Ranges {
  Range list[kMostRanges];
  int count = 0;

  /// name[0], name[1], ...
  constexpr void add(char const* name, std::size_t offset, std::size_t bytes, int elements) {
    for (int i = 0; i < elements; ++i) {
      Range& range = list[count++];
      range.offset = static_cast<unsigned>(offset + static_cast<std::size_t>(i) * bytes);
      range.bytes = static_cast<unsigned>(bytes);
      int at = 0;
      for (; name[at] != '\0'; ++at) range.name[at] = name[at];
      if (elements == 1) continue;
      range.name[at++] = '[';
      range.name[at++] = static_cast<char>('0' + i);
      range.name[at] = ']';
    }
  }
};

constexpr Ranges make_ranges() {
  using Layout = SmemLayout<Config>;
  using Bars = Barriers<Config>;
  Ranges r{};
  r.add("shared", 0, sizeof(Layout), 1);
  r.add("q", offsetof(Layout, q), sizeof(Layout::q[0]), Config::kConsumers);
  r.add("k", offsetof(Layout, k), sizeof(Layout::k[0]), Config::kStages);
  r.add("v", offsetof(Layout, v), sizeof(Layout::v[0]), Config::kStages);
  r.add("means", offsetof(Layout, means), sizeof(Layout::means), 1);
  r.add("out", offsetof(Layout, out), sizeof(Layout::out), 1);
  constexpr std::size_t kBarriers = offsetof(Layout, barriers);
  r.add("q_full", kBarriers + offsetof(Bars, q_full), sizeof(ptx::Barrier), Config::kConsumers);
  r.add("q_empty", kBarriers + offsetof(Bars, q_empty), sizeof(ptx::Barrier), Config::kConsumers);
  r.add("kv_full", kBarriers + offsetof(Bars, kv_full), sizeof(ptx::Barrier), Config::kStages);
  r.add("kv_empty", kBarriers + offsetof(Bars, kv_empty), sizeof(ptx::Barrier), Config::kStages);
  r.add("mean_full", kBarriers + offsetof(Bars, mean_full), sizeof(ptx::Barrier), Config::kMeanStages);
  r.add("mean_empty", kBarriers + offsetof(Bars, mean_empty), sizeof(ptx::Barrier), Config::kMeanStages);
  r.add("last_wave", offsetof(Layout, last_wave), sizeof(LastWave), 1);
  return r;
}

}  // namespace vcattn::attention_sm90a

extern "C" __device__ constexpr vcattn::attention_sm90a::Ranges vcattn_shared_ranges = vcattn::attention_sm90a::make_ranges();
