#include "dispatch/cuda.hpp"

#include "attention/sm90a/attention.hpp"
#include "device/cuda/runtime.hpp"

namespace vcattn::dispatch {

std::string cuda_unsupported_reason(Options const& options, std::int64_t head_dim, float softmax_scale) {
  if (std::string const reason = device::cuda::unavailable_reason(); !reason.empty()) return reason;
  return attention_sm90a::unsupported_reason(options, formats::padded_head_dim(head_dim), softmax_scale);
}

void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, Stream stream) {
  auto const& l = prepared.layout;
  std::string const reason = cuda_unsupported_reason(prepared.options, l.head_dim, l.softmax_scale);
  if (!reason.empty()) throw Error(ErrorCode::unsupported, reason);
  attention_sm90a::attention(prepared.view(), prepared.options, prepared.varlen, o, lse, stream);
}

}  // namespace vcattn::dispatch
