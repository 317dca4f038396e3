// Stands in for the kernels in a build without CUDA.

#include "prepare/cuda/prepare.hpp"

namespace vcattn::preparation::cuda {

std::string unsupported_reason(formats::PreparedLayout const&, Options const&) { return "this build has no preparation kernels"; }

std::size_t workspace_bytes(formats::PreparedLayout const&, Options const&) { return 0; }

void prepare(Problem const&, Options const& options, formats::SlabView<std::byte> const& slab, std::byte*, void*) {
  throw Error(ErrorCode::unsupported, unsupported_reason(slab.layout(), options));
}

void write_sequences(std::span<formats::SequenceExtent const>, formats::SequenceExtent*, void*) {
  throw Error(ErrorCode::unsupported, "this build has no preparation kernels");
}

void load_kernels() {}

}  // namespace vcattn::preparation::cuda
