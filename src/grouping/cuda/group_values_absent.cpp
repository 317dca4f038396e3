// Stands in for the kernels in a build without CUDA.

#include "grouping/cuda/group_values.hpp"

namespace vcattn::grouping::cuda {

std::string unsupported_reason(DeviceValues const&, Options const&) { return "this build has no CUDA kernels"; }

std::int32_t num_clusters(DeviceValues const&, Options const&) { return 0; }

std::size_t workspace_bytes(DeviceValues const&, Options const&) { return 0; }

void load_kernels() {}

void group_values(DeviceValues const& values, Options const& options, bool, float*, std::int32_t*, std::byte*, void*,
                  std::function<void(char const*)> const&) {
  throw Error(ErrorCode::unsupported, unsupported_reason(values, options));
}

}  // namespace vcattn::grouping::cuda
