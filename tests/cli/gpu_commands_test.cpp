// The commands with --device cuda. Needs a GPU that the kernels serve.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

/// Both sides are given one permutation: those that the GPU and the CPU make differ. Shaped rounding is asked for by a recipe's name alone.
TEST_F(GpuCommands, AttendWritesWhatTheCpuWrites) {
  std::vector<FloatTensor> swapped;
  for (FloatTensor const& tensor : small_problem()) swapped.push_back(swapped_axes(tensor));
  write_tensors(file("hnd.safetensors"), swapped);
  constexpr double kTolerance = 0.01;  // each is within 0.5 % of the tile-ordered reference
  run_successfully({"group", input_, "--seqused-k", "61", "-o", file("perm")});
  for (std::string const recipe : {"vc8s", "vc8", "vsmooth8", "fp8"}) {
    for (std::string const layout : {"nhd", "hnd"}) {
      std::vector<std::string> const arguments{"attend",      layout == "nhd" ? input_ : file("hnd.safetensors"),
                                               "--layout",    layout,
                                               "--recipe",    recipe,
                                               "--seqused-k", "61",
                                               "--perm",      file("perm"),
                                               "--lse",       "-o"};
      auto const attend = [&](std::string const& output, std::vector<std::string> const& devices) {
        std::vector<std::string> all = arguments;
        all.push_back(file(output));
        all.insert(all.end(), devices.begin(), devices.end());
        run_successfully(all);
      };
      attend("cpu", {});
      attend("cuda", {"--device", "cuda"});
      attend("mixed", {"--device", "cuda", "--prepare-on", "cpu"});
      for (char const* tensor : {"o", "lse"}) {
        FloatTensor const on_gpu = read_tensor(file("cuda"), tensor);
        double const difference = relative_difference(on_gpu, read_tensor(file("cpu"), tensor));
        EXPECT_LT(difference, kTolerance) << tensor << " of " << recipe << " " << layout;
        // The same codes, descales and means, so the same bits.
        EXPECT_EQ(on_gpu.values, read_tensor(file("mixed"), tensor).values) << tensor << " of " << recipe << " " << layout;
      }
    }
  }
}

TEST_F(GpuCommands, AttendGroupsAndPreparesOnTheGpu) {
  run_successfully({"attend", input_, "--device", "cuda", "--json", file("record"), "-o", file("cuda")});
  EXPECT_EQ(json::parse(read_file(file("record")))["prepared_on"], "cuda");
  run_successfully({"group", input_, "--device", "cuda", "-o", file("perm")});
  run_successfully({"attend", input_, "--device", "cuda", "--prepare-on", "cpu", "--perm", file("perm"), "-o", file("mixed")});
  EXPECT_EQ(read_tensor(file("cuda"), "o").values, read_tensor(file("mixed"), "o").values);
}

TEST_F(GpuCommands, AttendLooksForNonFiniteValuesInTheHostsCopy) {
  std::vector<FloatTensor> tensors = small_problem();
  tensors[1].values[5] = std::numeric_limits<float>::quiet_NaN();
  write_tensors(file("nan"), tensors);
  Outcome const outcome = run_program({"attend", file("nan"), "--device", "cuda", "-o", file("out")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("k must be finite"), std::string::npos) << outcome.err;
  run_successfully({"attend", file("nan"), "--device", "cuda", "--no-check-finite", "-o", file("out")});
}

TEST_F(GpuCommands, GroupRemovesAboutAsMuchAsTheCpu) {
  run_successfully({"synth", "-o", file("clip"), "--grid", "8,32,32", "--heads", "2", "--seed", "1"});
  auto const removed = [&](std::string const& device) {
    json const record = json::parse(run_successfully({"group", file("clip"), "--device", device, "-o", file(device), "--json"}).out);
    EXPECT_EQ(record["device"], device);
    EXPECT_GT(record["seconds"].get<double>(), 0.0);
    EXPECT_GT(record["value_energy_removed"]["grouped"], record["value_energy_removed"]["sequence"]);
    return record["value_energy_removed"]["grouped"].get<double>();
  };
  double const cpu = removed("cpu");
  EXPECT_GT(removed("cuda"), 0.95 * cpu);
  EXPECT_NE(read_file(file("cuda")), read_file(file("cpu"))) << "the GPU's grouping has other roundings";
}

TEST_F(GpuCommands, PreparationThatIsNotServedIsRefused) {
  std::vector<std::string> arguments{"attend", input_, "--set", "clusters=300", "--device", "cuda", "-o", file("out")};
  Outcome const outcome = run_program(arguments);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("up to 256 clusters"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--prepare-on cpu"), std::string::npos) << outcome.err;
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"in.safetensors"});
  arguments.insert(arguments.end(), {"--prepare-on", "cpu"});
  run_successfully(arguments);
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
    EXPECT_EQ(result["prepared_on"], "cuda");
    if (result.contains("error")) {
      EXPECT_TRUE(result["rel_l2"].is_null()) << result;
      continue;
    }
    ++served;
    EXPECT_GT(result["attention_seconds"].get<double>(), 0.0);
    EXPECT_GT(result["prepare_seconds"].get<double>(), 0.0);
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
  std::vector<std::string> const arguments{"bench", "--device", "cuda", "--shape", "1,1000,1500,2,128", "--recipes", "vc8s,vsmooth8s"};
  auto const with = [&](std::vector<std::string> const& more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  json const record = json::parse(run_successfully(with({"--json"})).out);
  EXPECT_EQ(record["cuda_device"], cuda_device_description());
  EXPECT_EQ(record["device"], "cuda");
  for (json const& result : record["results"]) {
    for (char const* scope : {"prepare", "attention", "prepare+attention"}) {
      EXPECT_GE(result[scope]["samples_seconds"].size(), 10u);
      EXPECT_GT(result[scope]["median_seconds"].get<double>(), 0.0);
      EXPECT_GE(result[scope]["calls_per_sample"].get<int>(), 1);
    }
    EXPECT_GT(result["attention"]["tflops"].get<double>(), 0.0);
    EXPECT_GT(result["prepare+attention"]["median_seconds"], result["attention"]["median_seconds"]);
    EXPECT_LT(result["rel_l2"].get<double>(), 0.06);
    EXPECT_GT(result["rel_l2"].get<double>(), 0.0);
  }
  EXPECT_NE(run_successfully(arguments).out.find("attention ms"), std::string::npos);
  json const prepared_on_cpu = json::parse(run_successfully(with({"--prepare-on", "cpu", "--json"})).out);
  EXPECT_EQ(prepared_on_cpu["prepared_on"], "cpu");
  for (json const& result : prepared_on_cpu["results"]) {
    EXPECT_TRUE(result.contains("attention"));
    EXPECT_FALSE(result.contains("prepare"));
    EXPECT_FALSE(result.contains("prepare+attention"));
  }
}

}  // namespace
}  // namespace vcattn::test
