// Faults planted in copies of the kernels (faults.cmake): each is reported, or gives a wrong result, under at least nine of ten schedules.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "cuda/device_problem.hpp"
#include "emulator/tests/planted_fault.hpp"

namespace vcattn::emulator {
namespace {

/// More than one window of key tiles, a partial tile, two query tiles for one CTA; and few keys, of which one is felt.
constexpr testing_support::Sizes kSizes[] = {{1, 200, 2200, 1, 1, 64}, {1, 65, 25, 1, 1, 64}};

struct PreparedCase {
  Prepared prepared;
  cuda_test::Expected expected;
};
PreparedCase prepared_case(testing_support::Sizes const& sizes) {
  PreparedCase result{prepare(testing_support::OwnedProblem::normal(sizes, 3).problem(), cuda_test::options_of("vc8")), {}};
  result.expected = cuda_test::expected_result(result.prepared);
  return result;
}

bool close(cuda_test::Output const& output, cuda_test::Expected const& expected) {
  if (!(testing_support::relative_l2(output.o_double(), expected.o) < 5e-3)) return false;
  for (std::size_t i = 0; i < output.lse.size(); ++i) {
    if (!(std::abs(static_cast<double>(output.lse[i]) - expected.lse[i]) < 4e-3)) return false;
  }
  return true;
}

class PlantedFault : public testing::TestWithParam<std::string> {};

TEST_P(PlantedFault, IsSeen) {
  device().multiprocessors = 1;
  device().arithmetic = MatrixArithmetic::exact;
  std::vector<PreparedCase> cases;
  for (auto const& sizes : kSizes) cases.push_back(prepared_case(sizes));
  expect_seen(VCATTN_FAULT_FOLDER, GetParam(), [&] {
    return std::all_of(cases.begin(), cases.end(),
                       [](PreparedCase const& c) { return close(cuda_test::run_on_device(c.prepared), c.expected); });
  });
}

INSTANTIATE_TEST_SUITE_P(Kernel, PlantedFault, testing::ValuesIn(fault_names(VCATTN_ATTENTION_FAULTS)),
                         [](auto const& tested) { return tested.param; });

/// Grouping and preparation on the device, against the same with the right kernels.
class PlantedPreparationFault : public testing::TestWithParam<std::string> {};

TEST_P(PlantedPreparationFault, IsSeen) {
  device().multiprocessors = 3;
  device().arithmetic = MatrixArithmetic::exact;
  auto const owned = testing_support::OwnedProblem::normal({1, 200, 301, 2, 2, 64}, 4);
  cuda_test::DeviceInputs const inputs(owned.problem());
  Options const options = cuda_test::options_of("vc8 rounding=nearest");
  auto const prepared_bytes = [&] {
    CudaBuffer storage(prepared_size_bytes(inputs.problem(), options));
    storage.fill(0);
    (void)prepare(inputs.problem(), options, {static_cast<std::byte*>(storage.data()), storage.size()}, {Device::cuda, nullptr, {}});
    std::vector<std::byte> bytes(storage.size());
    storage.download(bytes.data(), bytes.size());
    return bytes;
  };
  auto const expected = prepared_bytes();
  expect_seen(VCATTN_FAULT_FOLDER, GetParam(), [&] { return prepared_bytes() == expected; });
}

INSTANTIATE_TEST_SUITE_P(Kernel, PlantedPreparationFault, testing::ValuesIn(fault_names(VCATTN_PREPARATION_FAULTS)),
                         [](auto const& tested) { return tested.param; });

}  // namespace
}  // namespace vcattn::emulator
