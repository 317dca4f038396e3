// Stands in for the kernels in a build without CUDA.

#include "attention/sm90a/attention.hpp"

namespace vcattn::attention_sm90a {

std::string unsupported_reason(formats::PreparedLayout const&, Options const&) { return "this build has no sm_90a kernels"; }

std::size_t workspace_bytes(formats::PreparedLayout const&, Options const&) { return 0; }

void load_kernels() {}

void attention(formats::SlabView<std::byte const> const& slab, Options const& options, bool, MutableTensorView const&, float*, std::byte*,
               void*) {
  throw Error(ErrorCode::unsupported, unsupported_reason(slab.layout(), options));
}

}  // namespace vcattn::attention_sm90a
