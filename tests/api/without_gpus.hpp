#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

namespace vcattn::test {

/// Hides GPUs from the program that includes this, so that it sees the same on every machine.
class WithoutGpus : public testing::Environment {
 public:
  void SetUp() override { ASSERT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "-1", 1), 0); }
};
[[maybe_unused]] inline testing::Environment* const kWithoutGpus = testing::AddGlobalTestEnvironment(new WithoutGpus);

}  // namespace vcattn::test
