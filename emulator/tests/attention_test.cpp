// The sm_90a attention kernels in the emulator, through the host code that launches them on a GPU, against the tile-ordered reference.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "emulator/device/device.hpp"

namespace vcattn::emulator {
namespace {

using cuda_test::Case;

class EmulatedAttention : public testing::Test {
 protected:
  EmulatedAttention() {
    device().multiprocessors = 3;
    device().arithmetic = MatrixArithmetic::exact;
  }
};

/// One case under several schedules: the same bits from each, close to the reference.
void check(Case const& attention_case, std::uint32_t number) {
  std::string const name = attention_case.name();
  auto const owned = testing_support::OwnedProblem::normal(attention_case.sizes, cuda_test::case_seed(number));
  Prepared const prepared = prepare(attention_case.problem(owned), cuda_test::options_of(attention_case.recipe));
  device().seed = 1;
  cuda_test::Output const first = cuda_test::run_on_device(prepared, attention_case.with_lse);
  cuda_test::expect_close(first, cuda_test::expected_result(prepared), name);
  device().seed = 1000;
  EXPECT_TRUE(cuda_test::same_bits(first, cuda_test::run_on_device(prepared, attention_case.with_lse)))
      << name << ": the order of execution shows";
}

class EmulatedRecipe : public EmulatedAttention, public testing::WithParamInterface<char const*> {};

TEST_P(EmulatedRecipe, OddSizes) {
  std::uint32_t number = 0;
  for (testing_support::Sizes const& sizes : std::vector<testing_support::Sizes>{{1, 1, 1, 1, 1, 64},
                                                                                 {1, 63, 129, 2, 1, 40},
                                                                                 {2, 65, 127, 2, 2, 128},
                                                                                 {1, 193, 257, 1, 1, 72},
                                                                                 {1, 2, 509, 4, 4, 64},
                                                                                 {1, 127, 1, 2, 1, 96}}) {
    check({GetParam(), sizes}, number++);
  }
}

TEST_P(EmulatedRecipe, Causal) {
  check({GetParam(), {2, 127, 127, 2, 1, 72}, true}, 20);
  check({GetParam(), {1, 257, 65, 1, 1, 64}, true}, 21);
  check({GetParam(), {1, 63, 385, 2, 2, 128}, true}, 22);
}

/// More than one window of accumulators, and of row-sum columns.
TEST_P(EmulatedRecipe, Windows) {
  check({GetParam(), {1, 65, 2200, 1, 1, 128}}, 30);
  check({GetParam(), {1, 129, 2200, 1, 1, 64}}, 31);
}

/// A last wave that several CTAs share, and the kernel that joins their parts.
TEST_P(EmulatedRecipe, SplitLastWave) { check({GetParam(), {1, 1, 4700, 1, 1, 64}}, 40); }

TEST_P(EmulatedRecipe, KeyLengths) { check({GetParam(), {3, 65, 257, 2, 1, 64}, false, {0, 129, 257}}, 50); }

std::string test_name(testing::TestParamInfo<char const*> const& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, EmulatedRecipe, testing::Values("vc8", "vc8s", "vsmooth8", "vsmooth8s", "fp8", "vc8-paper"), test_name);

/// FP32 sums instead of the tensor core's: close to exact attention, faster.
TEST_F(EmulatedAttention, FastArithmetic) {
  device().arithmetic = MatrixArithmetic::fast;
  testing_support::Sizes const sizes{1, 256, 1024, 1, 1, 128};
  auto const owned = testing_support::OwnedProblem::normal(sizes, 5);
  Prepared const prepared = prepare(owned.problem(), cuda_test::options_of("vc8"));
  auto const output = cuda_test::run_on_device(prepared);
  auto const expected = cuda_test::expected_result(prepared);
  EXPECT_LT(testing_support::relative_l2(output.o_double(), expected.o), 0.02);
}

}  // namespace
}  // namespace vcattn::emulator
