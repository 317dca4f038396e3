// The emulator against the stored results of a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "emulator/proof/machine.hpp"
#include "emulator/proof/vectors.hpp"

namespace vcattn::emulator::proof {
namespace {

Vectors const& vectors() {
  static Vectors const kVectors = read_vectors(VCATTN_FORM_VECTORS);
  return kVectors;
}

void check(std::vector<Program> const& programs) {
  for (Program const& program : programs) {
    SCOPED_TRACE(program.name);
    for (std::uint64_t const seed : {1u, 2u}) {
      ASSERT_NO_THROW(EXPECT_EQ(difference(program, run_emulated(program, seed), vectors()), ""));
    }
  }
}

TEST(AgainstTheGpu, AttentionForms) { check(attention_programs()); }
TEST(AgainstTheGpu, BoxCopies) { check(box_programs()); }
TEST(AgainstTheGpu, PreparationForms) { check(preparation_programs()); }

/// Closer than a form of that name must be.
TEST(AgainstTheGpu, Exp2ToTheBit) {
  auto const programs = attention_programs();
  auto const exp2 = std::find_if(programs.begin(), programs.end(), [](Program const& p) { return p.name == "ex2.approx.ftz.f32"; });
  ASSERT_NE(exp2, programs.end());
  EXPECT_EQ(result_words(run_emulated(*exp2, 1)), vectors().words.at(exp2->name));
}

/// Every stored result belongs to a program, and each program has its own.
TEST(AgainstTheGpu, NothingStoredIsLeftOut) {
  std::set<std::string> names;
  for (auto const& programs : {attention_programs(), box_programs(), preparation_programs()}) {
    for (Program const& program : programs) EXPECT_TRUE(names.insert(program.name).second) << program.name;
  }
  EXPECT_EQ(names.size(), vectors().hashes.size() + vectors().words.size());
  for (auto const& [name, hashes] : vectors().hashes) EXPECT_EQ(names.count(name), 1u) << name;
  for (auto const& [name, words] : vectors().words) EXPECT_EQ(names.count(name), 1u) << name;
}

/// A wrong bit shows.
TEST(AgainstTheGpu, OneBitIsSeen) {
  for (Program const& program : attention_programs()) {
    if (program.name != "fma.rn.f32" && program.name != "ex2.approx.ftz.f32") continue;
    auto output = run_emulated(program, 1);
    output[8 * 1000 + (program.tolerance != 0 ? 1 : 0)] ^= 1;
    EXPECT_NE(difference(program, output, vectors()), "") << program.name;
  }
}

}  // namespace
}  // namespace vcattn::emulator::proof
