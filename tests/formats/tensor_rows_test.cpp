#include "formats/tensor_rows.hpp"

#include <gtest/gtest.h>

#include <array>

namespace vcattn::formats {
namespace {

TEST(AlignedRuns, NeedContiguousChannelsAndMultiplesOfTheRun) {
  alignas(64) static std::array<std::byte, 64> const memory{};  // only addresses are looked at
  TensorView const whole = nhd_view(memory.data(), DType::bf16, 2, 3, 2, 16);
  EXPECT_TRUE(has_aligned_runs(whole, 8));
  EXPECT_TRUE(has_aligned_runs(whole, 2));

  TensorView shifted = whole;
  shifted.data = memory.data() + 4;  // two elements
  EXPECT_FALSE(has_aligned_runs(shifted, 8));
  EXPECT_TRUE(has_aligned_runs(shifted, 2));

  TensorView odd = whole;
  odd.stride[1] = 33;
  EXPECT_FALSE(has_aligned_runs(odd, 2));
  odd.shape[1] = 1;  // its stride is never used
  EXPECT_TRUE(has_aligned_runs(odd, 8));
  odd.stride[0] = -32;
  EXPECT_TRUE(has_aligned_runs(odd, 8));

  TensorView apart = whole;
  apart.stride[3] = 2;
  EXPECT_FALSE(has_aligned_runs(apart, 2));
}

}  // namespace
}  // namespace vcattn::formats
