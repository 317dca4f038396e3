#pragma once

// The compiled instances: one translation unit each, generated from the list in sources.cmake.

#include <cuda_runtime_api.h>

#include "attention/sm90a/params.cuh"
#include "attention/sm90a/tile_config.hpp"

namespace vcattn::attention_sm90a {

/// Starts the kernel of configuration C with `ctas` CTAs, and the one that joins parts where there is memory for them. load_instance() must
/// have been called on the device.
template <class C>
cudaError_t launch_instance(KernelParams const& params, unsigned ctas, cudaStream_t stream);

/// Loads the kernels on the current device and allows them their shared memory.
template <class C>
cudaError_t load_instance();

}  // namespace vcattn::attention_sm90a
