// Whole kernels in the emulator against the stored results of a GPU.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "emulator/device/device.hpp"
#include "emulator/proof/kernels.hpp"

namespace vcattn::emulator::proof {
namespace {

Vectors const& vectors() {
  static Vectors const kVectors = read_vectors(VCATTN_KERNEL_VECTORS);
  return kVectors;
}

void expect_hashes(std::vector<std::uint8_t> const& bytes, std::string const& name) {
  auto const found = vectors().hashes.find(name);
  ASSERT_NE(found, vectors().hashes.end()) << name << ": no stored results";
  EXPECT_EQ(block_hashes(bytes), found->second) << name;
}

/// Exponentials are within 2 ulp of the GPU's, and a probability next to a rounding bound takes another code: as far from the GPU as the
/// tests of kernels allow, which is much less than an error of any kind gives.
void expect_close(std::vector<std::uint8_t> const& bytes, std::string const& name) {
  auto const found = vectors().words.find(name);
  ASSERT_NE(found, vectors().words.end()) << name << ": no stored results";
  auto const words = sample(bytes);
  ASSERT_EQ(words.size(), found->second.size()) << name;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto const a = static_cast<double>(std::bit_cast<float>(words[i])), b = static_cast<double>(std::bit_cast<float>(found->second[i]));
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    error += (a - b) * (a - b);
    norm += b * b;
  }
  EXPECT_LE(std::sqrt(error), 1e-3 * std::sqrt(norm)) << name;
}

class WholeKernel : public testing::TestWithParam<KernelCase> {
 protected:
  // As the GPU that recorded: it decides how the last wave is split.
  WholeKernel() { device().multiprocessors = 132; }
};

TEST_P(WholeKernel, Attention) {
  KernelCase const& c = GetParam();
  KernelOutput const output = run_on_device(c);
  ASSERT_NO_FATAL_FAILURE(expect_hashes(output.prepared, c.name() + " prepared"));
  auto const expect = c.has_exponentials() ? expect_close : expect_hashes;
  expect(output.o, c.name() + " o");
  expect(output.lse, c.name() + " lse");
}

TEST_P(WholeKernel, Preparation) { expect_hashes(prepare_on_device(GetParam()), GetParam().name() + " prepared"); }

std::string test_name(testing::TestParamInfo<KernelCase> const& info) {
  std::string name = info.param.name();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(AgainstTheGpu, WholeKernel, testing::ValuesIn(kernel_cases()), test_name);

TEST(WholeKernels, NothingStoredIsLeftOut) {
  std::set<std::string> names;
  for (KernelCase const& c : kernel_cases()) {
    for (char const* const part : {" prepared", " o", " lse"}) EXPECT_TRUE(names.insert(c.name() + part).second) << c.name();
  }
  EXPECT_EQ(names.size(), vectors().hashes.size() + vectors().words.size());
}

}  // namespace
}  // namespace vcattn::emulator::proof
