#include "dispatch/cuda_grouping.hpp"

#include "device/cuda/runtime.hpp"
#include "formats/tensor_check.hpp"
#include "grouping/cuda/group_values.hpp"
#include "prepare/cuda/prepare.hpp"

namespace vcattn::dispatch {

namespace {

using formats::SequenceExtent;
using grouping::cuda::DeviceValues;

/// The parts of the workspace that lie before the scratch of the kernels.
struct WorkspaceParts {
  std::size_t extents_bytes, centroids_bytes;
  std::size_t scratch_begin() const { return extents_bytes + centroids_bytes; }
};

WorkspaceParts workspace_parts(DeviceValues const& values, Options const& options) {
  return {formats::aligned_size(values.sequences.size_bytes()), formats::aligned_size(grouping::cuda::centroid_bytes(values, options))};
}

}  // namespace

CudaGrouping::CudaGrouping(TensorView const& v, std::span<std::int32_t const> valid_rows, Options const& options)
    : v_(v), options_(options), sequences_(valid_rows.size()) {
  for (std::size_t b = 0; b < sequences_.size(); ++b) {
    sequences_[b].seqlen_kv = valid_rows[b];
    sequences_[b].rows_kv = v.seqlen();
    sequences_[b].row_begin_kv = static_cast<std::int64_t>(b) * v.seqlen();
  }
}

std::string CudaGrouping::unsupported_reason() const {
  if (std::string reason = device::cuda::unavailable_reason(); !reason.empty()) return reason;
  if (std::string reason = formats::misaligned(v_.data, dtype_bytes(v_.dtype), "v"); !reason.empty()) return reason;
  return grouping::cuda::unsupported_reason({v_, false, sequences_, nullptr}, options_);
}

std::int32_t CudaGrouping::clusters() const { return grouping::cuda::num_clusters({v_, false, sequences_, nullptr}, options_); }

std::size_t CudaGrouping::workspace_bytes() const {
  DeviceValues const values{v_, false, sequences_, nullptr};
  return workspace_parts(values, options_).scratch_begin() + formats::aligned_size(grouping::cuda::workspace_bytes(values, options_));
}

void CudaGrouping::run(GroupingBuffers const& grouping, std::byte* workspace, Stream stream) const {
  auto* const extents = reinterpret_cast<SequenceExtent*>(workspace);
  DeviceValues const values{v_, false, sequences_, extents};
  WorkspaceParts const parts = workspace_parts(values, options_);
  float* centroids = grouping.centroids.data();
  if (grouping.centroids.empty()) centroids = reinterpret_cast<float*>(workspace + parts.extents_bytes);
  auto const& warm = grouping.warm_centroids;
  preparation::cuda::write_sequences(sequences_, extents, stream);
  if (!warm.empty() && warm.data() != centroids) device::cuda::copy_on_device(centroids, warm.data(), warm.size_bytes(), stream);
  grouping::cuda::group_values(values, options_, !warm.empty(), centroids, grouping.permutation.data(), workspace + parts.scratch_begin(),
                               stream);
}

}  // namespace vcattn::dispatch
