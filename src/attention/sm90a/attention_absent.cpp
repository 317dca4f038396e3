// Stands in for the kernels in a build without CUDA.

#include "attention/sm90a/attention.hpp"

namespace vcattn::attention_sm90a {

std::string unsupported_reason(Options const&, std::int64_t, float) { return "this build has no sm_90a kernels"; }

void attention(formats::SlabView<std::byte const> const&, Options const& options, bool, MutableTensorView const&, float*, void*) {
  throw Error(ErrorCode::unsupported, unsupported_reason(options, 0, 0.0f));
}

}  // namespace vcattn::attention_sm90a
