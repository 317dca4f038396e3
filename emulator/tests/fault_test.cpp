// Faults planted in copies of the kernels (faults.cmake): each is reported, or gives a wrong result, under at least nine of ten schedules.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "emulator/device/device.hpp"
#include "emulator/fault.hpp"

namespace vcattn::emulator {
namespace {

constexpr int kSchedules = 10;

/// More than one window of key tiles, a partial tile, two query tiles for one CTA.
Prepared prepared_problem() {
  testing_support::Sizes const sizes{1, 200, 2200, 1, 1, 64};
  return prepare(testing_support::OwnedProblem::normal(sizes, 3).problem(), cuda_test::options_of("vc8"));
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
  Prepared const prepared = prepared_problem();
  cuda_test::Expected const expected = cuda_test::expected_result(prepared);
  device().multiprocessors = 1;
  device().arithmetic = MatrixArithmetic::exact;
  device().ptx_folders = {VCATTN_FAULT_FOLDER "/" + GetParam(), VCATTN_PTX_FOLDER};
  if (GetParam() == "none") device().ptx_folders.erase(device().ptx_folders.begin());
  int reported = 0, wrong = 0;
  std::string report;
  for (int n = 0; n < kSchedules; ++n) {
    device().seed = static_cast<std::uint64_t>(100 + 10 * n);
    try {
      if (!close(cuda_test::run_on_device(prepared), expected)) ++wrong;
    } catch (Fault const& fault) {
      ++reported;
      report = fault.what();
    }
  }
  fmt::print("{}: {} reported, {} wrong of {}\n{}\n", GetParam(), reported, wrong, kSchedules, report);
  if (GetParam() == "none") {
    EXPECT_EQ(reported + wrong, 0) << report;
  } else {
    EXPECT_GE(reported + wrong, 9 * kSchedules / 10);
  }
}

std::vector<std::string> fault_names() {
  std::istringstream in(VCATTN_FAULTS);
  std::vector<std::string> names = {"none"};
  for (std::string name; in >> name;) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernel, PlantedFault, testing::ValuesIn(fault_names()), [](auto const& info) { return info.param; });

}  // namespace
}  // namespace vcattn::emulator
