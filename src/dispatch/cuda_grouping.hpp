#pragma once

// Grouping on a CUDA device for its own sake; prepare_cuda() groups for one call.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/prepared_layout.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::dispatch {

/// Values [B, Sk, Hkv, D] in device memory, and how they are to be grouped.
class CudaGrouping {
 public:
  /// valid_rows: [B].
  CudaGrouping(TensorView const& v, std::span<std::int32_t const> valid_rows, Options const& options);

  /// Why the current device does not serve it, empty if it does.
  std::string unsupported_reason() const;
  std::int32_t clusters() const;
  std::size_t workspace_bytes() const;
  /// Groups on `stream` into arrays whose sizes have been checked. Allocates nothing, waits for nothing, may be captured into a graph.
  void run(GroupingBuffers const& grouping, std::byte* workspace, Stream stream) const;

 private:
  TensorView v_;
  Options options_;
  std::vector<formats::SequenceExtent> sequences_;
};

}  // namespace vcattn::dispatch
