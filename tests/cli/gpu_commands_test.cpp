// The commands with --device cuda. Needs a GPU that the kernels serve.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "cli/temporary_folder.hpp"
#include "cli/tensor_files.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/options.hpp"

namespace vcattn::test {
namespace {

using nlohmann::json;

double relative_difference(FloatTensor const& a, FloatTensor const& b) {
  EXPECT_EQ(a.shape, b.shape);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i) {
    difference += std::pow(static_cast<double>(a.values[i]) - b.values[i], 2);
    norm += std::pow(static_cast<double>(b.values[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class GpuCommands : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string const reason = cuda_unavailable_reason(); !reason.empty()) FAIL() << "this test needs a GPU: " << reason;
    write_tensors(input_, small_problem());
  }
  std::string file(std::string_view name) const { return folder_.file(name); }

  static Outcome run_successfully(std::vector<std::string> const& arguments) {
    Outcome const outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }

  TemporaryFolder folder_;
  std::string input_ = folder_.file("in.safetensors");
};

TEST_F(GpuCommands, InfoNamesTheGpu) {
  json const record = json::parse(run_successfully({"info", "--json"}).out);
  EXPECT_EQ(record["cuda_built"], true);
  EXPECT_EQ(record["cuda_usable"], true);
  EXPECT_EQ(record["cuda_note"], cuda_device_description());
}

TEST_F(GpuCommands, AttendWritesWhatTheCpuWrites) {
  std::vector<FloatTensor> swapped;
  for (FloatTensor const& tensor : small_problem()) swapped.push_back(swapped_axes(tensor));
  write_tensors(file("hnd.safetensors"), swapped);
  constexpr double kTolerance = 0.01;  // each is within 0.5 % of the tile-ordered reference
  for (std::string const recipe : {"vc8s", "vc8", "vsmooth8", "fp8"}) {
    for (std::string const layout : {"nhd", "hnd"}) {
      for (std::string const device : {"cpu", "cuda"}) {
        run_successfully({"attend", layout == "nhd" ? input_ : file("hnd.safetensors"), "--layout", layout, "--recipe", recipe, "--lse",
                          "--seqused-k", "61", "--device", device, "-o", file(device)});
      }
      for (char const* tensor : {"o", "lse"}) {
        double const difference = relative_difference(read_tensor(file("cuda"), tensor), read_tensor(file("cpu"), tensor));
        EXPECT_LT(difference, kTolerance) << tensor << " of " << recipe << " " << layout;
      }
    }
  }
}

TEST_F(GpuCommands, AttendRefusesWhatIsNotServed) {
  Outcome const outcome = run_program({"attend", input_, "--recipe", "nvfp4", "--device", "cuda", "-o", file("out")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"in.safetensors"});
}

TEST_F(GpuCommands, CompareSaysWhatIsNotServed) {
  Outcome const text = run_successfully({"compare", input_, "--device", "cuda", "--html", file("page")});
  EXPECT_NE(text.out.find("exact      not served on cuda: "), std::string::npos) << text.out;
  EXPECT_NE(read_file(file("page")).find("not served on cuda: "), std::string::npos);
  json const record = json::parse(run_successfully({"compare", input_, "--device", "cuda", "--json"}).out);
  json const cpu = json::parse(run_successfully({"compare", input_, "--json"}).out);
  EXPECT_EQ(record["cuda_device"], cuda_device_description());
  ASSERT_EQ(record["results"].size(), all_recipes().size());
  std::size_t served = 0;
  for (std::size_t i = 0; i < record["results"].size(); ++i) {
    json const& result = record["results"][i];
    EXPECT_EQ(result["device"], "cuda");
    if (result.contains("error")) {
      EXPECT_TRUE(result["rel_l2"].is_null()) << result;
      continue;
    }
    ++served;
    EXPECT_GT(result["attention_seconds"].get<double>(), 0.0);
    EXPECT_NEAR(result["rel_l2"].get<double>(), cpu["results"][i]["rel_l2"].get<double>(), 0.01) << result["recipe"];
  }
  EXPECT_GT(served, 0u);
}

TEST_F(GpuCommands, CompareRefusesNamedRecipesThatAreNotServed) {
  Outcome const outcome = run_program({"compare", input_, "--device", "cuda", "--recipes", "vc8s,nvfp4"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("nvfp4 is not served on cuda: "), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  run_successfully({"compare", input_, "--device", "cuda", "--recipes", "vc8s"});
}

TEST_F(GpuCommands, BenchReportsSpeedAndAccuracy) {
  std::vector<std::string> const arguments{"bench", "--device", "cuda", "--shape", "1,1000,1500,2,128", "--recipes", "vc8,vc8s"};
  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  json const record = json::parse(run_successfully(with_json).out);
  EXPECT_EQ(record["cuda_device"], cuda_device_description());
  EXPECT_EQ(record["device"], "cuda");
  for (json const& result : record["results"]) {
    EXPECT_GE(result["attention"]["samples_seconds"].size(), 10u);
    EXPECT_GT(result["attention"]["tflops"].get<double>(), 0.0);
    EXPECT_GE(result["attention"]["calls_per_sample"].get<int>(), 1);
    EXPECT_FALSE(result.contains("prepare"));
    EXPECT_LT(result["rel_l2"].get<double>(), 0.06);
    EXPECT_GT(result["rel_l2"].get<double>(), 0.0);
  }
  EXPECT_NE(run_successfully(arguments).out.find("attention ms"), std::string::npos);
}

}  // namespace
}  // namespace vcattn::test
