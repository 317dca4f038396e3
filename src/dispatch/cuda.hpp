#pragma once

// Which CUDA kernels serve what.

#include <string>

#include "formats/prepared_layout.hpp"

namespace vcattn::dispatch {

/// Why a problem of that layout is not served on the current CUDA device, empty if it is.
std::string cuda_unsupported_reason(formats::PreparedLayout const& layout, Options const& options);

/// Loads the kernels on the current device, so that the first attention() may be captured into a graph.
void load_cuda_kernels();

/// attention() of a problem in device memory. Throws ErrorCode::unsupported with the reason above, invalid_argument where another device is
/// current or o or lse are not aligned to their elements.
void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, Stream stream);

}  // namespace vcattn::dispatch
