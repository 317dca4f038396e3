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
