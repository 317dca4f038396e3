#include "attention_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/tensor_files.hpp"
#include "evaluate.hpp"

namespace vcattn::cli {
namespace {

TEST(AttentionRun, GivesWhatAttendGives) {
  auto const tensors = test::small_problem();
  Problem problem;
  problem.q = nhd_view(tensors[0].values.data(), DType::f32, 1, 40, 2, 64);
  problem.k = nhd_view(tensors[1].values.data(), DType::f32, 1, 72, 2, 64);
  problem.v = nhd_view(tensors[2].values.data(), DType::f32, 1, 72, 2, 64);
  Options const options = recipe_options(Recipe::vc8s);

  std::vector<float> expected_o, expected_lse(2 * 40), o, lse(2 * 40);
  attend(problem, options, output_view(problem.q, expected_o), expected_lse);
  AttentionRun run(problem, options, {}, output_view(problem.q, o), lse);
  EXPECT_GT(run.prepare(), 0.0);
  EXPECT_EQ(run.value_energy_removed(), prepare(problem, options).value_energy_removed());
  for (auto const stage : {&AttentionRun::attention, &AttentionRun::attend}) {
    for (std::int64_t const calls : {1, 3}) {
      std::ranges::fill(o, 0.0f);
      EXPECT_GT((run.*stage)(calls), 0.0);
      run.fetch();
      EXPECT_EQ(o, expected_o);
      EXPECT_EQ(lse, expected_lse);
    }
  }
}

TEST(Devices, PreparationFollowsAttentionUnlessItIsNamed) {
  auto const expect_devices = [](char const* device, char const* prepare_on, Device attention, Device preparation) {
    RunArguments arguments;
    arguments.device = device;
    arguments.prepare_on = prepare_on;
    Devices const devices = parse_devices(arguments);
    EXPECT_EQ(devices.attention, attention);
    EXPECT_EQ(devices.preparation, preparation);
    EXPECT_EQ(resolve_options(Recipe::vc8s, arguments).check_finite, preparation == Device::cpu);
  };
  expect_devices("cpu", "", Device::cpu, Device::cpu);
  expect_devices("cpu", "cpu", Device::cpu, Device::cpu);
  expect_devices("cuda", "", Device::cuda, Device::cuda);
  expect_devices("cuda", "cuda", Device::cuda, Device::cuda);
  expect_devices("cuda", "cpu", Device::cuda, Device::cpu);
}

TEST(CheckSupport, NamedRecipesMustBeServedOnAGpu) {
  Problem problem;  // no device serves it
  RecipeResult result{Recipe::nvfp4, recipe_options(Recipe::nvfp4), {}, {}, {}, {}};
  Devices const gpu{Device::cuda, Device::cuda};
  check_support(result, problem, gpu, false);
  EXPECT_FALSE(result.error.empty());
  EXPECT_EQ(refusal_text(result, Device::cuda), "not served on cuda: " + result.error);
  EXPECT_EQ(refusal_text(result, Device::cpu), "not run: " + result.error);
  EXPECT_NO_THROW(check_support(result, problem, {}, true));
  try {
    check_support(result, problem, gpu, true);
    FAIL() << "a recipe that was asked for by name must not be left out";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_TRUE(std::string(error.what()).starts_with("nvfp4 is not served on cuda: ")) << error.what();
  }
}

}  // namespace
}  // namespace vcattn::cli
