// The command line with --device emu.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "cli/temporary_folder.hpp"
#include "cli/tensor_files.hpp"

namespace vcattn::test {
namespace {

std::string text_of(std::string const& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class EmulatedCommands : public testing::Test {
 protected:
  void SetUp() override { write_tensors(file("in"), small_problem()); }
  std::string file(std::string_view name) const { return folder_.file(name); }
  Outcome attend(std::string const& output, std::vector<std::string> const& more) const {
    std::vector<std::string> arguments = {"attend", file("in"), "--recipe", "vc8", "--perm", file("perm"), "-o", file(output)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  TemporaryFolder folder_;
};

TEST_F(EmulatedCommands, AttendWritesWhatTheCpuWrites) {
  ASSERT_EQ(run_program({"group", file("in"), "-o", file("perm")}).exit_code, 0);
  Outcome const cpu = attend("cpu", {}), emulated = attend("emu", {"--device", "emu", "--counters", file("counters"), "--trace",
                                                                   file("trace"), "--trace-warp", "attention_kernel,0,4"});
  ASSERT_EQ(cpu.exit_code, 0) << cpu.err;
  ASSERT_EQ(emulated.exit_code, 0) << emulated.err;
  FloatTensor const expected = read_tensor(file("cpu"), "o"), o = read_tensor(file("emu"), "o");
  ASSERT_EQ(o.shape, expected.shape);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < o.values.size(); ++i) {
    difference += std::pow(static_cast<double>(o.values[i]) - expected.values[i], 2);
    norm += std::pow(static_cast<double>(expected.values[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 0.01);

  auto const counters = nlohmann::json::parse(text_of(file("counters")));
  auto const& attention = counters.at("vcattn::attention_sm90a::attention_kernel");
  EXPECT_GT(attention.at("by_kind").at("matrix"), 0);
  EXPECT_GT(attention.at("copied_to_shared_bytes"), 0);
  EXPECT_GT(attention.at("shared_bytes").at("read_by_wgmma"), 0);
  EXPECT_GT(counters.at("vcattn::preparation::cuda::value_codes_kernel").at("global_bytes").at("written"), 0);
  for (auto const& [name, of_kernel] : counters.items()) EXPECT_FALSE(name.ends_with(":")) << name;
  EXPECT_NE(text_of(file("trace")).find("wgmma.mma_async"), std::string::npos);
}

TEST_F(EmulatedCommands, ATraceThatSawNothingIsAnError) {
  ASSERT_EQ(run_program({"group", file("in"), "-o", file("perm")}).exit_code, 0);
  for (std::string const warp : {"no_such_kernel,0,4", "attention_kernel,999,0", "attention_kernel,0,99"}) {
    Outcome const outcome = attend("out", {"--device", "emu", "--trace", file("trace"), "--trace-warp", warp});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.err.find("no launch of a kernel"), std::string::npos) << outcome.err;
  }
}

TEST_F(EmulatedCommands, RefusalsSayWhatToDo) {
  auto const refused = [&](std::vector<std::string> const& arguments, char const* text) {
    Outcome const outcome = attend("none", arguments);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  refused({"--device", "cuda"}, "--device: cpu or emu required, got 'cuda'");
  for (std::string const warp : {"kernel,0", "kernel,-1,0", "kernel,0,4294967300", "kernel,0,1,2", "kernel,,1"})
    refused({"--device", "emu", "--trace", file("trace"), "--trace-warp", warp}, "--trace-warp: KERNEL,CTA,WARP required");
  refused({"--device", "emu", "--counters", file("no_folder/counters")}, "--counters: cannot write");
  refused({"--device", "emu", "--trace-warp", "attention_kernel,0,4"}, "--trace-warp requires --trace");
  refused({"--device", "emu", "--emu-seed", "-1"}, "--emu-seed");
  refused({"--device", "emu", "--counters", file("both"), "--trace", file("both")}, "two files required");
  for (std::string const option : {"--counters", "--trace"}) refused({option, file("counters")}, "--device emu required");
  refused({"--emu-fast", "--device", "cpu"}, "--device emu required");
  EXPECT_EQ(text_of(file("counters")), "");
  EXPECT_NE(run_program({"bench"}).exit_code, 0);
}

}  // namespace
}  // namespace vcattn::test
