// Whole kernels in the emulator against the stored results of a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
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

void expect_sample(std::vector<std::uint8_t> const& bytes, std::string const& name) {
  auto const found = vectors().words.find(name);
  ASSERT_NE(found, vectors().words.end()) << name << ": no stored results";
  EXPECT_EQ(sample(bytes), found->second) << name;
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
  auto const expect = c.has_exponentials() ? expect_sample : expect_hashes;
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
