// Faults planted in copies of the kernels (faults.cmake): each is reported, or gives a wrong result, under at least nine of ten schedules.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  std::vector<PreparedCase> cases;
  for (auto const& sizes : kSizes) cases.push_back(prepared_case(sizes));
  device().arithmetic = MatrixArithmetic::exact;
  static std::vector<std::string> const kRight = device().ptx_folders;
  device().ptx_folders = kRight;
  if (GetParam() != "none") device().ptx_folders.insert(device().ptx_folders.begin(), VCATTN_FAULT_FOLDER "/" + GetParam());
  int reported = 0, wrong = 0;
  std::string report;
  for (int n = 0; n < kSchedules; ++n) {
    device().seed = static_cast<std::uint64_t>(100 + 10 * n);
    try {
      bool const right = std::all_of(cases.begin(), cases.end(),
                                     [](PreparedCase const& c) { return close(cuda_test::run_on_device(c.prepared), c.expected); });
      if (!right) ++wrong;
    } catch (Fault const& fault) {
      ++reported;
      report = fault.what();
    }
  }
  fmt::print("{}: {} reported, {} wrong of {}. {}\n", GetParam(), reported, wrong, kSchedules, report.substr(0, report.find('\n')));
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
INSTANTIATE_TEST_SUITE_P(Kernel, PlantedFault, testing::ValuesIn(fault_names()), [](auto const& tested) { return tested.param; });

}  // namespace
}  // namespace vcattn::emulator
