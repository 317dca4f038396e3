// Grouping on either device, into memory of the caller or a state of its own. The CPU's group_values() is in src/grouping/.

#include "vcattn/grouping.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/runtime.hpp"
#include "dispatch/cuda.hpp"
#include "dispatch/cuda_grouping.hpp"
#include "dispatch/validate.hpp"
#include "formats/prepared_layout.hpp"
#include "grouping/grouping_options.hpp"
#include "grouping/state_fit.hpp"
#include "grouping/value_rows.hpp"

namespace vcattn {

namespace {

dispatch::CudaGrouping cuda_grouping(TensorView const& v, std::vector<std::int32_t> const& valid_rows, Options const& options) {
  dispatch::CudaGrouping grouping(v, valid_rows, options);
  if (std::string const reason = grouping.unsupported_reason(); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  return grouping;
}

template <typename T>
void check_array(std::span<T> array, std::size_t elements, std::string const& name, std::string const& advice) {
  if (array.size() != elements) {
    throw Error(ErrorCode::invalid_argument, "grouping." + name + ": " + std::to_string(elements) + " elements required, got " +
                                                 std::to_string(array.size()) + "; " + advice);
  }
  if (reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(T) != 0) {
    throw Error(ErrorCode::invalid_argument, "grouping." + name + ": an address that is a multiple of " + std::to_string(sizeof(T)) +
                                                 " required, got " + std::to_string(reinterpret_cast<std::uintptr_t>(array.data())));
  }
}

void check_buffers(GroupingBuffers const& grouping, GroupingSizes const& sizes) {
  std::string const sized = "size it as grouping_sizes() says: " + std::to_string(sizes.clusters) + " clusters";
  check_array(grouping.permutation, sizes.permutation, "permutation", sized);
  if (!grouping.centroids.empty()) check_array(grouping.centroids, sizes.centroids, "centroids", sized);
  if (grouping.warm_centroids.empty()) return;
  check_array(grouping.warm_centroids, sizes.centroids, "warm_centroids",
              "pass those of an earlier call on the same shape, with " + std::to_string(sizes.clusters) + " clusters, or none");
}

void group_on_cpu(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k, GroupingSizes const& sizes,
                  GroupingBuffers const& grouping) {
  GroupingState warm;
  if (!grouping.warm_centroids.empty()) {
    warm = grouping::empty_state(v, grouping::checked_valid_rows(v, seqused_k), sizes.clusters);
    warm.permutation.resize(sizes.permutation);  // of which a warm start reads the size only
    warm.centroids.assign(grouping.warm_centroids.begin(), grouping.warm_centroids.end());
  }
  GroupingState const state = group_values(v, options, seqused_k, grouping.warm_centroids.empty() ? nullptr : &warm);
  std::copy(state.permutation.begin(), state.permutation.end(), grouping.permutation.begin());
  if (!grouping.centroids.empty()) std::copy(state.centroids.begin(), state.centroids.end(), grouping.centroids.begin());
}

}  // namespace

GroupingSizes grouping_sizes(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k, Device device) {
  dispatch::check_device(device);
  std::vector<std::int32_t> const valid_rows = grouping::checked_valid_rows(v, seqused_k);
  grouping::check_options(options);
  GroupingSizes sizes;
  if (device == Device::cuda) {
    dispatch::CudaGrouping const grouping = cuda_grouping(v, valid_rows, options);
    sizes.clusters = grouping.clusters();
    sizes.workspace_bytes = grouping.workspace_bytes();
  } else {
    sizes.clusters = grouping::num_clusters(options, valid_rows);
  }
  sizes.permutation = static_cast<std::size_t>(v.batch() * v.num_heads() * v.seqlen());
  sizes.centroids = static_cast<std::size_t>(v.batch() * v.num_heads() * sizes.clusters * v.head_dim());
  return sizes;
}

void group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k, GroupingBuffers const& grouping,
                  Call const& call) {
  GroupingSizes const sizes = grouping_sizes(v, options, seqused_k, call.device);
  check_buffers(grouping, sizes);
  if (call.device == Device::cpu) return group_on_cpu(v, options, seqused_k, sizes, grouping);
  dispatch::load_cuda_kernels();
  std::span<std::byte> workspace = call.workspace;
  std::shared_ptr<void> pooled;
  if (workspace.empty()) {
    pooled = device::cuda::allocate_on_stream(sizes.workspace_bytes, call.stream);
    workspace = {static_cast<std::byte*>(pooled.get()), sizes.workspace_bytes};
  }
  formats::check_memory(workspace, sizes.workspace_bytes, "workspace", "grouping_sizes()");
  cuda_grouping(v, grouping::checked_valid_rows(v, seqused_k), options).run(grouping, workspace.data(), call.stream);
}

GroupingState group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k, GroupingState const* warm,
                           Call const& call) {
  dispatch::check_device(call.device);
  if (call.device == Device::cpu) return group_values(v, options, seqused_k, warm);
  GroupingSizes const sizes = grouping_sizes(v, options, seqused_k, call.device);
  std::vector<std::int32_t> const valid_rows = grouping::checked_valid_rows(v, seqused_k);
  grouping::StatePlace const place{Device::cuda, device::cuda::current_device()};
  if (warm != nullptr) grouping::check_warm_state(*warm, v, valid_rows, sizes.clusters, place);
  GroupingState state = grouping::empty_state(v, valid_rows, sizes.clusters, place);
  state.device_memory = device::cuda::allocate(sizes.permutation * sizeof(std::int32_t) + sizes.centroids * sizeof(float));
  GroupingBuffers buffers = grouping::device_buffers(state);
  if (warm != nullptr) buffers.warm_centroids = warm->centroids_view();
  group_values(v, options, seqused_k, buffers, call);
  return state;
}

}  // namespace vcattn
