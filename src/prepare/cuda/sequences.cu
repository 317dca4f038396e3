// Extents of the sequences from the host to the slab, as arguments of a kernel: a captured copy would read host memory again at every
// replay.

#include <algorithm>

#include "device/cuda/check.hpp"
#include "device/launch.cuh"
#include "prepare/cuda/prepare.hpp"

namespace vcattn::preparation::cuda {

namespace {

using formats::SequenceExtent;

constexpr std::size_t kExtentsPerLaunch = 32;  // arguments of a kernel may have 4 KB

struct Extents {
  SequenceExtent entries[kExtentsPerLaunch];
};

__global__ void write_sequences_kernel(__grid_constant__ Extents const extents, SequenceExtent* sequences, unsigned count) {
  if (threadIdx.x < count) sequences[threadIdx.x] = extents.entries[threadIdx.x];
}

}  // namespace

void write_sequences(std::span<SequenceExtent const> sequences, SequenceExtent* device_sequences, void* stream) {
  for (std::size_t first = 0; first < sequences.size(); first += kExtentsPerLaunch) {
    std::size_t const count = std::min(kExtentsPerLaunch, sequences.size() - first);
    Extents extents{};
    std::copy_n(sequences.begin() + static_cast<std::ptrdiff_t>(first), count, extents.entries);
    device::cuda::check(device::launch(write_sequences_kernel, dim3(1), dim3(kExtentsPerLaunch), 0, static_cast<cudaStream_t>(stream),
                                       extents, device_sequences + first, static_cast<unsigned>(count)),
                        "launch of a preparation kernel");
  }
}

}  // namespace vcattn::preparation::cuda
