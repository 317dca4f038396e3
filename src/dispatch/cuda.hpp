#pragma once

// Which CUDA kernels serve what.

#include <string>

#include "formats/prepared_layout.hpp"

namespace vcattn::dispatch {

/// Why `options` are not served on the current CUDA device, empty if they are.
std::string cuda_unsupported_reason(Options const& options, std::int64_t head_dim, float softmax_scale);

/// attention() of a problem in device memory. Throws ErrorCode::unsupported with the reason above.
void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, Stream stream);

}  // namespace vcattn::dispatch
