#pragma once

// Runs a planted fault (faults.cmake) under several schedules.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "emulator/device/device.hpp"
#include "emulator/fault.hpp"

namespace vcattn::emulator {

inline constexpr int kSchedules = 10;

/// folder: of all faults. right(): whether the result is; run with the kernels of that fault in the place of the right ones, "none": with
/// these. A fault must be reported, or change the result, under at least nine of ten schedules.
template <typename Right>
void expect_seen(std::string const& folder, std::string const& fault, Right const& right) {
  EmulatedDevice& d = device();
  static std::vector<std::string> const kRightFolders = d.ptx_folders;
  d.ptx_folders = kRightFolders;
  if (fault != "none") d.ptx_folders.insert(d.ptx_folders.begin(), folder + "/" + fault);
  int reported = 0, wrong = 0;
  std::string report;
  for (int n = 0; n < kSchedules; ++n) {
    d.seed = static_cast<std::uint64_t>(100 + 100 * n);
    try {
      if (!right()) ++wrong;
    } catch (Fault const& found) {
      ++reported;
      report = found.what();
    }
  }
  d.ptx_folders = kRightFolders;
  fmt::print("{}: {} reported, {} wrong of {}. {}\n", fault, reported, wrong, kSchedules, report.substr(0, report.find('\n')));
  if (fault == "none") {
    EXPECT_EQ(reported + wrong, 0) << report;
  } else {
    EXPECT_GE(reported + wrong, 9 * kSchedules / 10);
  }
}

/// "none", and the words of a list.
inline std::vector<std::string> fault_names(std::string const& list) {
  std::istringstream in(list);
  std::vector<std::string> names = {"none"};
  for (std::string name; in >> name;) names.push_back(name);
  return names;
}

}  // namespace vcattn::emulator
