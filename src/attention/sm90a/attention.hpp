#pragma once

// Hopper back end (sm_90a) for 8-bit recipes. Host interface without CUDA types.

#include <string>

#include "formats/prepared_layout.hpp"

namespace vcattn::attention_sm90a {

/// Why a prepared problem is not served, empty if it is.
std::string unsupported_reason(formats::PreparedLayout const& layout, Options const& options);

/// Bytes of scratch, in device memory.
std::size_t workspace_bytes(formats::PreparedLayout const& layout, Options const& options);

/// Loads every instance on the current device (otherwise the first launch does, which a stream capture forbids).
void load_kernels();

/// Enqueues O and, unless lse is nullptr, the log-sum-exp on `stream` (cudaStream_t). All pointers are device memory; nothing is allocated,
/// nothing is read back, so the call may be captured into a graph. workspace: workspace_bytes(). Arguments must have been validated.
void attention(formats::SlabView<std::byte const> const& slab, Options const& options, bool varlen, MutableTensorView const& o, float* lse,
               std::byte* workspace, void* stream);

}  // namespace vcattn::attention_sm90a
