// The CUDA part of the C ABI where no GPU can be used: clear refusals, never a crash. What runs on a GPU is in gpu_c_api_test.cpp.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "c_api_case.hpp"
#include "without_gpus.hpp"

namespace vcattn::test {
namespace {

class CApiCuda : public testing::Test {
 protected:
  CApiCuda() {
    call.device = VCATTN_CUDA;
    EXPECT_EQ(vcattn_prepare(&problem, &options, nullptr, 0, nullptr, &prepared), VCATTN_OK) << vcattn_last_error();
  }
  ~CApiCuda() override { EXPECT_EQ(vcattn_prepared_destroy(prepared), VCATTN_OK); }

  static void expect_error(vcattn_status status, vcattn_status code, std::string const& text) {
    EXPECT_EQ(status, code) << vcattn_last_error();
    EXPECT_NE(std::string(vcattn_last_error()).find(text), std::string::npos) << "'" << vcattn_last_error() << "' should say " << text;
  }

  Case c;
  vcattn_problem problem = c.c_problem();
  vcattn_options options = c_options("vc8s");
  vcattn_output output = c.c_output();
  vcattn_call call = zeroed<vcattn_call>();
  vcattn_prepared* prepared = nullptr;
};

TEST_F(CApiCuda, AvailableSaysWhyNot) {
  std::uint32_t available = 1;
  std::array<char, 512> reason{};
  EXPECT_EQ(vcattn_cuda_available(&available, reason.data(), reason.size()), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(available, 0u);
  EXPECT_NE(std::string(reason.data()).find("use device cpu"), std::string::npos) << reason.data();

  std::array<char, 8> cut{};
  cut.fill('x');
  EXPECT_EQ(vcattn_cuda_available(&available, cut.data(), cut.size()), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(std::string(cut.data()), std::string(reason.data()).substr(0, cut.size() - 1));
  EXPECT_EQ(vcattn_cuda_available(&available, nullptr, 0), VCATTN_OK) << vcattn_last_error();
  expect_error(vcattn_cuda_available(nullptr, nullptr, 0), VCATTN_INVALID_ARGUMENT, "available: a non-null pointer");
  expect_error(vcattn_cuda_available(&available, nullptr, 8), VCATTN_INVALID_ARGUMENT, "reason: a non-null pointer");
}

TEST_F(CApiCuda, SupportsGivesTheReason) {
  std::uint32_t supported = 1;
  std::array<char, 512> reason{};
  EXPECT_EQ(vcattn_supports(&problem, &options, VCATTN_CUDA, &supported, reason.data(), reason.size()), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(supported, 0u);
  EXPECT_NE(std::string(reason.data()).find("use device cpu"), std::string::npos) << reason.data();
}

TEST_F(CApiCuda, ProblemsAreCheckedBeforeTheDevice) {
  problem.q.shape[3] = problem.k.shape[3] = problem.v.shape[3] = 7;
  std::uint32_t supported = 1;
  std::array<char, 512> reason{};
  EXPECT_EQ(vcattn_supports(&problem, &options, VCATTN_CUDA, &supported, reason.data(), reason.size()), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(supported, 0u);
  EXPECT_NE(std::string(reason.data()).find("head_dim"), std::string::npos) << reason.data();
}

TEST_F(CApiCuda, CopyNeedsADevice) {
  auto* on_device = prepared;
  expect_error(vcattn_prepared_to_cuda(prepared, nullptr, 0, &on_device), VCATTN_UNSUPPORTED, "use device cpu");
  EXPECT_EQ(on_device, nullptr) << "a failed call must leave no handle";
}

TEST_F(CApiCuda, CopyChecksItsArguments) {
  vcattn_prepared* on_device = prepared;
  std::array<std::byte, 8> storage{};
  expect_error(vcattn_prepared_to_cuda(nullptr, nullptr, 0, &on_device), VCATTN_INVALID_ARGUMENT, "prepared: a non-null pointer");
  EXPECT_EQ(on_device, nullptr);
  expect_error(vcattn_prepared_to_cuda(prepared, nullptr, 0, nullptr), VCATTN_INVALID_ARGUMENT, "on_device: a non-null pointer");
  expect_error(vcattn_prepared_to_cuda(prepared, storage.data(), 0, &on_device), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(vcattn_prepared_to_cuda(prepared, nullptr, storage.size(), &on_device), VCATTN_INVALID_ARGUMENT, "storage");
  expect_error(vcattn_prepared_to_cuda(prepared, storage.data(), std::numeric_limits<std::size_t>::max(), &on_device),
               VCATTN_INVALID_ARGUMENT, "storage");
}

TEST_F(CApiCuda, PreparedIsOnTheCpu) {
  std::uint32_t device = 9;
  EXPECT_EQ(vcattn_prepared_device(prepared, &device), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(device, VCATTN_CPU);
  expect_error(vcattn_prepared_device(nullptr, &device), VCATTN_INVALID_ARGUMENT, "prepared: a non-null pointer");
  expect_error(vcattn_prepared_device(prepared, nullptr), VCATTN_INVALID_ARGUMENT, "device: a non-null pointer");
}

TEST_F(CApiCuda, CallsOnADeviceSayThatThereIsNone) {
  auto* other = prepared;
  expect_error(vcattn_prepare(&problem, &options, nullptr, 0, &call, &other), VCATTN_UNSUPPORTED, "use device cpu");
  EXPECT_EQ(other, nullptr);
  expect_error(vcattn_attend(&problem, &options, &output, &call), VCATTN_UNSUPPORTED, "use device cpu");
  expect_error(vcattn_cuda_load_kernels(), VCATTN_UNSUPPORTED, "use device cpu");
  std::size_t bytes = 0;
  expect_error(vcattn_call_workspace_size(&problem, &options, VCATTN_CUDA, &bytes), VCATTN_UNSUPPORTED, "use device cpu");
  expect_error(vcattn_workspace_size(&problem, &options, VCATTN_CUDA, &bytes), VCATTN_UNSUPPORTED, "use device cpu");
  std::uint32_t supported = 1;
  std::array<char, 512> reason{};
  EXPECT_EQ(vcattn_supports_call(&problem, &options, VCATTN_CUDA, &supported, reason.data(), reason.size()), VCATTN_OK);
  EXPECT_EQ(supported, 0u);
  EXPECT_NE(std::string(reason.data()).find("use device cpu"), std::string::npos) << reason.data();
  EXPECT_EQ(vcattn_supports_call(&problem, &options, VCATTN_CPU, &supported, reason.data(), reason.size()), VCATTN_OK);
  EXPECT_EQ(supported, 1u) << reason.data();
}

TEST_F(CApiCuda, GroupingSaysThatThereIsNone) {
  auto grouping = zeroed<vcattn_grouping>();
  grouping.v = problem.v;
  // Addresses that no process owns: a device's are not for the host to write.
  grouping.permutation = reinterpret_cast<std::int32_t*>(std::uintptr_t{4096});
  grouping.permutation_count = c.keys();
  std::size_t bytes = 0;
  expect_error(vcattn_group(&grouping, &options, &call), VCATTN_UNSUPPORTED, "use device cpu");
  expect_error(vcattn_group_workspace_size(&grouping, &options, VCATTN_CUDA, &bytes), VCATTN_UNSUPPORTED, "use device cpu");
  std::int32_t clusters = 0;
  expect_error(vcattn_group_clusters(&grouping, &options, VCATTN_CUDA, &clusters), VCATTN_UNSUPPORTED, "use device cpu");

  vcattn_schedule* schedule = nullptr;
  ASSERT_EQ(vcattn_schedule_create(VCATTN_SCHEDULE_EVERY_STEP, 4, 0.25, &schedule), VCATTN_OK) << vcattn_last_error();
  std::int32_t const* permutation = nullptr;
  std::int64_t count = 0;
  expect_error(vcattn_schedule_permutation(schedule, 0, 10, 0, 0, &problem.v, &options, nullptr, 0, &permutation, &count, &call),
               VCATTN_UNSUPPORTED, "use device cpu");
  std::uint32_t action = 99;
  EXPECT_EQ(vcattn_schedule_decide(schedule, 1, 10, 0, 0, &action), VCATTN_OK) << vcattn_last_error();
  EXPECT_EQ(action, VCATTN_ACTION_REGROUP_COLD) << "a failed call must leave no state";
  EXPECT_EQ(vcattn_schedule_destroy(schedule), VCATTN_OK);
  grouping.v.shape[3] = -1;
  expect_error(vcattn_group(&grouping, &options, &call), VCATTN_INVALID_ARGUMENT, "check the shape");
}

TEST_F(CApiCuda, TheCallMustNameTheDeviceOfTheProblem) {
  // Addresses that no process owns: a device's are not for the host to read.
  output.o.data = reinterpret_cast<void*>(std::uintptr_t{4096});
  output.lse = reinterpret_cast<float*>(std::uintptr_t{1} << 30);
  call.stream = &call;
  expect_error(vcattn_attention(prepared, &output, nullptr, 0, &call), VCATTN_INVALID_ARGUMENT, "call.device: VCATTN_CPU required");
}

}  // namespace
}  // namespace vcattn::test
