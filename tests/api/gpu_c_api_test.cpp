// The CUDA part of the C ABI on a GPU: the bits of the C++ API. Needs a GPU that the kernels serve.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_api_case.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::test {
namespace {

void expect_ok(vcattn_status status) { EXPECT_EQ(status, VCATTN_OK) << vcattn_last_error(); }

void expect_error(vcattn_status status, vcattn_status code, std::string const& text) {
  EXPECT_EQ(status, code) << vcattn_last_error();
  EXPECT_NE(std::string(vcattn_last_error()).find(text), std::string::npos) << "'" << vcattn_last_error() << "' should say " << text;
}

class GpuCApi : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string const reason = cuda_unavailable_reason(); !reason.empty()) FAIL() << "this test needs a GPU: " << reason;
    device_o.emplace(c.o.size() * sizeof(float));
    device_lse.emplace(c.lse.size() * sizeof(float));
    call.device = VCATTN_CUDA;
    output.o.data = device_o->data();
    output.lse = static_cast<float*>(device_lse->data());
    expect_ok(vcattn_prepare(&problem, &options, nullptr, 0, nullptr, &prepared));
  }
  void TearDown() override {
    expect_ok(vcattn_prepared_destroy(on_device));
    expect_ok(vcattn_prepared_destroy(prepared));
  }

  /// o and lse of the C++ API on the GPU.
  std::pair<std::vector<float>, std::vector<float>> expected() {
    Prepared const copy = to_cuda(prepare(c.problem(), recipe_options(Recipe::vc8s)));
    MutableTensorView o = c.output_view();
    o.data = device_o->data();
    attention(copy, o, {static_cast<float*>(device_lse->data()), c.lse.size()});
    return fetched();
  }

  std::pair<std::vector<float>, std::vector<float>> fetched(Stream stream = nullptr) {
    device_o->download(c.o.data(), device_o->size(), stream);
    device_lse->download(c.lse.data(), device_lse->size(), stream);
    device_o->fill(0xFF);
    device_lse->fill(0xFF);
    return {c.o, c.lse};
  }

  void expect_same(std::pair<std::vector<float>, std::vector<float>> const& a, std::pair<std::vector<float>, std::vector<float>> const& b) {
    EXPECT_TRUE(same_bits(a.first, b.first));
    EXPECT_TRUE(same_bits(a.second, b.second));
  }

  Case c;
  vcattn_problem problem = c.c_problem();
  vcattn_options options = c_options("vc8s");
  vcattn_output output = c.c_output();
  vcattn_call call = zeroed<vcattn_call>();
  vcattn_prepared *prepared = nullptr, *on_device = nullptr;
  std::optional<CudaBuffer> device_o, device_lse;
};

TEST_F(GpuCApi, IsAvailable) {
  std::uint32_t available = 0, supported = 0;
  char reason[64] = "x";
  expect_ok(vcattn_cuda_available(&available, reason, sizeof(reason)));
  EXPECT_EQ(available, 1u);
  EXPECT_STREQ(reason, "");
  expect_ok(vcattn_supports(&problem, &options, VCATTN_CUDA, &supported, reason, sizeof(reason)));
  EXPECT_EQ(supported, 1u);
}

TEST_F(GpuCApi, AttentionEqualsCpp) {
  auto const wanted = expected();
  expect_ok(vcattn_prepared_to_cuda(prepared, nullptr, 0, &on_device));
  std::uint32_t device = VCATTN_CPU;
  expect_ok(vcattn_prepared_device(on_device, &device));
  EXPECT_EQ(device, VCATTN_CUDA);
  expect_ok(vcattn_attention(on_device, &output, nullptr, 0, &call));
  expect_same(fetched(), wanted);
}

TEST_F(GpuCApi, AttentionInCallerMemoryOutlivesTheSource) {
  auto const wanted = expected();
  std::size_t bytes = 0;
  expect_ok(vcattn_prepared_bytes(prepared, &bytes));
  CudaBuffer storage(bytes);
  expect_error(vcattn_prepared_to_cuda(prepared, storage.data(), bytes - 1, &on_device), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(vcattn_prepared_to_cuda(prepared, static_cast<std::byte*>(storage.data()) + 8, bytes, &on_device), VCATTN_INVALID_ARGUMENT,
               "storage");
  expect_ok(vcattn_prepared_to_cuda(prepared, storage.data(), bytes, &on_device));
  expect_ok(vcattn_prepared_destroy(std::exchange(prepared, nullptr)));
  expect_ok(vcattn_attention(on_device, &output, nullptr, 0, &call));
  expect_same(fetched(), wanted);
}

TEST_F(GpuCApi, AttentionOnAStream) {
  auto const wanted = expected();
  expect_ok(vcattn_prepared_to_cuda(prepared, nullptr, 0, &on_device));
  call.stream = reinterpret_cast<void*>(std::uintptr_t{2});  // cudaStreamPerThread
  expect_ok(vcattn_attention(on_device, &output, nullptr, 0, &call));
  expect_same(fetched(call.stream), wanted);
}

TEST_F(GpuCApi, LseMayBeLeftOut) {
  auto const wanted = expected();
  expect_ok(vcattn_prepared_to_cuda(prepared, nullptr, 0, &on_device));
  output.lse = nullptr;
  output.lse_count = 0;
  expect_ok(vcattn_attention(on_device, &output, nullptr, 0, &call));
  EXPECT_TRUE(same_bits(fetched().first, wanted.first));
}

/// V and the arrays of grouping in device memory.
class GpuCApiGrouping : public GpuCApi {
 protected:
  void SetUp() override {
    GpuCApi::SetUp();
    device_v.emplace(c.values().size() * sizeof(float));
    device_v->upload(c.values().data(), device_v->size());
    v = c.problem().v;
    v.data = device_v->data();
    sizes = grouping_sizes(v, recipe_options(Recipe::vc8s), {}, Device::cuda);
    permutation.emplace(sizes.permutation * sizeof(std::int32_t));
    centroids.emplace(sizes.centroids * sizeof(float));
    grouping.v = to_c<vcattn_tensor>(v);
    grouping.permutation = static_cast<std::int32_t*>(permutation->data());
    grouping.permutation_count = static_cast<std::int64_t>(sizes.permutation);
    grouping.centroids = static_cast<float*>(centroids->data());
    grouping.centroids_count = static_cast<std::int64_t>(sizes.centroids);
  }

  template <typename T>
  static std::vector<T> fetched(CudaBuffer const& buffer) {
    std::vector<T> host(buffer.size() / sizeof(T));
    buffer.download(host.data(), buffer.size());
    return host;
  }

  /// Permutation and centroids of the C++ API, which groups in other memory.
  std::pair<std::vector<std::int32_t>, std::vector<float>> expected(bool warm) {
    CudaBuffer other_permutation(permutation->size()), other_centroids(centroids->size());
    std::vector<float> const start = fetched<float>(*centroids);
    other_centroids.upload(start.data(), other_centroids.size());
    std::span<float> const means(static_cast<float*>(other_centroids.data()), sizes.centroids);
    group_values(v, recipe_options(Recipe::vc8s), {},
                 {{static_cast<std::int32_t*>(other_permutation.data()), sizes.permutation}, means, warm ? means : std::span<float>{}},
                 {Device::cuda, nullptr, {}});
    return {fetched<std::int32_t>(other_permutation), fetched<float>(other_centroids)};
  }
  void expect_grouped(std::pair<std::vector<std::int32_t>, std::vector<float>> const& wanted) {
    EXPECT_TRUE(same_bits(fetched<std::int32_t>(*permutation), wanted.first));
    EXPECT_TRUE(same_bits(fetched<float>(*centroids), wanted.second));
    EXPECT_TRUE(same_bits(fetched<float>(*device_v), c.values())) << "v was changed";
    permutation->fill(0xFF);
  }

  TensorView v;
  GroupingSizes sizes;
  vcattn_grouping grouping = zeroed<vcattn_grouping>();
  std::optional<CudaBuffer> device_v, permutation, centroids;
};

TEST_F(GpuCApiGrouping, GroupEqualsCpp) {
  auto const cold = expected(false);
  expect_ok(vcattn_group(&grouping, &options, &call));
  expect_grouped(cold);

  auto const warm = expected(true);
  grouping.warm_centroids = grouping.centroids;
  grouping.warm_centroids_count = grouping.centroids_count;
  std::size_t bytes = 0;
  expect_ok(vcattn_group_workspace_size(&grouping, &options, VCATTN_CUDA, &bytes));
  CudaBuffer const workspace(bytes);
  call.workspace = workspace.data();
  call.workspace_bytes = bytes;
  expect_ok(vcattn_group(&grouping, &options, &call));
  expect_grouped(warm);

  call.workspace_bytes = bytes - 1;
  expect_error(vcattn_group(&grouping, &options, &call), VCATTN_INVALID_ARGUMENT, "workspace");
  call.workspace = device_v->data();
  call.workspace_bytes = device_v->size();
  expect_error(vcattn_group(&grouping, &options, &call), VCATTN_INVALID_ARGUMENT, "overlap");
}

TEST_F(GpuCApiGrouping, AScheduleFeedsTheCompleteCall) {
  vcattn_schedule* schedule = nullptr;
  expect_ok(vcattn_schedule_create(VCATTN_SCHEDULE_FIRST_QUARTER, 2, 1.0, &schedule));
  GroupingSchedule same(SchedulePolicy::first_quarter, 2, 1.0);
  std::int32_t const* first = nullptr;
  for (std::int64_t step = 0; step < 4; ++step) {
    std::int32_t const* pointer = nullptr;
    std::int64_t count = 0;
    expect_ok(vcattn_schedule_permutation(schedule, step, 4, 7, 1, &grouping.v, &options, nullptr, 0, &pointer, &count, &call));
    if (step == 0) first = pointer;
    EXPECT_EQ(pointer, first);
    auto const other = same.permutation(step, 4, {7, 1}, v, recipe_options(Recipe::vc8s), {}, {Device::cuda, nullptr, {}});
    ASSERT_EQ(static_cast<std::size_t>(count), other.size());

    Problem const host = c.problem();
    CudaBuffer q(c.o.size() * sizeof(float)), k(c.values().size() * sizeof(float));
    q.upload(host.q.data, q.size());
    k.upload(host.k.data, k.size());
    problem.q.data = q.data();
    problem.k.data = k.data();
    problem.v = grouping.v;
    problem.permutation = pointer;
    problem.permutation_count = count;
    expect_ok(vcattn_attend(&problem, &options, &output, &call));
    auto const from_schedule = GpuCApi::fetched();
    problem.permutation = other.data();
    expect_ok(vcattn_attend(&problem, &options, &output, &call));
    expect_same(from_schedule, GpuCApi::fetched());
  }
  std::int32_t const* pointer = nullptr;
  std::int64_t count = 0;
  expect_error(vcattn_schedule_permutation(schedule, 3, 4, 7, 1, &problem.v, &options, nullptr, 0, &pointer, &count, nullptr),
               VCATTN_INVALID_ARGUMENT, "device cpu, got a state with cuda");
  expect_ok(vcattn_schedule_destroy(schedule));
}

TEST_F(GpuCApi, Misuse) {
  expect_ok(vcattn_prepared_to_cuda(prepared, nullptr, 0, &on_device));
  vcattn_prepared* again = nullptr;
  expect_error(vcattn_prepared_to_cuda(on_device, nullptr, 0, &again), VCATTN_INVALID_ARGUMENT, "already");
  EXPECT_EQ(again, nullptr);
  expect_error(vcattn_attention(on_device, &output, nullptr, 0, nullptr), VCATTN_INVALID_ARGUMENT, "call.device: VCATTN_CUDA required");
  expect_error(vcattn_attention(prepared, &output, nullptr, 0, &call), VCATTN_INVALID_ARGUMENT, "call.device: VCATTN_CPU required");
  output.lse = static_cast<float*>(device_o->data()) + 1;
  expect_error(vcattn_attention(on_device, &output, nullptr, 0, &call), VCATTN_INVALID_ARGUMENT, "overlap");
}

}  // namespace
}  // namespace vcattn::test
