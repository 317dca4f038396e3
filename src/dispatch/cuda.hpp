#pragma once

// Which CUDA kernels serve what.

#include <span>
#include <string>

#include "formats/prepared_layout.hpp"

namespace vcattn::dispatch {

/// Why a problem of that layout is not served on the current CUDA device, empty if it is.
std::string cuda_unsupported_reason(formats::PreparedLayout const& layout, Options const& options);

/// Loads the kernels on the current device and makes its memory pool, once per device; the first time may not be during a stream capture.
void load_cuda_kernels();

/// Why a problem in device memory cannot be prepared there, empty if it can.
std::string cuda_prepare_unsupported_reason(Problem const& problem, Options const& options, formats::LayoutPlan const& plan);

/// The same for preparation and attention in one call.
std::string cuda_call_unsupported_reason(Problem const& problem, Options const& options, formats::LayoutPlan const& plan);

/// Scratch of prepare_cuda() for a problem that is served.
std::size_t cuda_prepare_workspace_bytes(Problem const& problem, Options const& options, formats::LayoutPlan const& plan);

/// Groups, smooths and quantises a problem in device memory, on `stream`. slab: of the plan, device memory. workspace:
/// cuda_prepare_workspace_bytes().
void prepare_cuda(Problem const& problem, Options const& options, formats::LayoutPlan const& plan, std::byte* slab, std::byte* workspace,
                  Stream stream);

/// Scratch of attention_cuda() for a layout that is served.
std::size_t cuda_workspace_bytes(formats::PreparedLayout const& layout, Options const& options);

/// Throws ErrorCode::invalid_argument where o or lse in device memory are not aligned to their elements.
void check_results(MutableTensorView const& o, float const* lse);

/// attention() of a problem in device memory. workspace: empty (from the pool) or cuda_workspace_bytes(). Throws ErrorCode::unsupported
/// with the reason above, invalid_argument where another device is current, o or lse are not aligned to their elements, or the workspace
/// does not do.
void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, std::span<std::byte> workspace, Stream stream);

}  // namespace vcattn::dispatch
