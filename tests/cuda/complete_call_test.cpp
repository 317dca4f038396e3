// attend() and prepare() of tensors in device memory: the bits of preparation on the CPU and attention on the device, whatever the memory
// around holds; graphs, workspaces, refusals.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/attention_case.hpp"
#include "cuda/device_problem.hpp"
#include "device/cuda/check.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn::cuda_test {
namespace {

using device::cuda::check;

/// Permutation that a problem on the device was prepared with.
std::vector<std::int32_t> permutation_of(Prepared const& prepared) {
  std::vector<std::int32_t> permutation(prepared.permutation().size());
  check(cudaMemcpy(permutation.data(), prepared.permutation().data(), permutation.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return permutation;
}

constexpr char const* kServed[] = {"vc8s",      "vsmooth8s",          "vc8", "vsmooth8", "vc8 rounding=nearest", "fp8",
                                   "vc8-paper", "vc8s order=sequence"};

TEST(CompleteCall, EqualsPreparationOnTheCpuWithThePermutationOfTheDevice) {
  std::uint32_t number = 40;
  for (char const* const recipe : kServed) {
    for (Case const& one : {Case{recipe, {1, 257, 1025, 2, 1, 128}}, Case{recipe, {2, 65, 385, 2, 2, 64}, false, {385, 129}},
                            Case{recipe, {1, 193, 4100, 4, 2, 72}}, Case{recipe, {1, 1, 1, 1, 1, 40}},
                            Case{recipe, {1, 385, 513, 2, 1, 64}, false, {}, {0, 0, 1, 192, 385}, {0, 127, 127, 256, 513}}}) {
      OwnedProblem const owned = OwnedProblem::normal(one.sizes, case_seed(++number));
      Problem problem = one.problem(owned);
      Options const options = options_of(recipe);
      DeviceInputs const inputs(problem);
      Problem on_device = inputs.problem();
      Prepared const prepared = prepare(on_device, options, {}, {Device::cuda, nullptr, {}});
      std::vector<std::int32_t> const permutation = permutation_of(prepared);
      problem.permutation = permutation;
      Output const expected = run_on_device(prepare(problem, options));
      EXPECT_TRUE(same_bits(run(prepared), expected)) << one.name() << ": prepare";
      EXPECT_TRUE(same_bits(attend_on_device(on_device, options), expected)) << one.name() << ": attend";
      EXPECT_TRUE(inputs.holds(problem)) << one.name() << ": inputs were changed";

      CudaBuffer device_permutation(permutation.size() * sizeof(std::int32_t));
      device_permutation.upload(permutation.data(), device_permutation.size());
      on_device.permutation = {static_cast<std::int32_t const*>(device_permutation.data()), permutation.size()};
      EXPECT_TRUE(same_bits(attend_on_device(on_device, options), expected)) << one.name() << ": given permutation";
    }
  }
}

TEST(CompleteCall, CausalKeepsTheOrderOfTheSequence) {
  Case const one{"vc8s", {1, 193, 509, 2, 1, 64}, true};
  OwnedProblem const owned = OwnedProblem::normal(one.sizes, case_seed(80));
  Problem const problem = one.problem(owned);
  Options const options = options_of(one.recipe);
  DeviceInputs const inputs(problem);
  EXPECT_TRUE(same_bits(attend_on_device(inputs.problem(), options), run_on_device(prepare(problem, options))));
}

TEST(CompleteCall, TheWorkspaceOfTheCallerIsEnoughAndOnlyIt) {
  Case const one{"vc8s", {1, 200, 5003, 2, 1, 128}};
  OwnedProblem const owned = OwnedProblem::normal(one.sizes, case_seed(81));
  Problem const problem = one.problem(owned);
  Options const options = options_of(one.recipe);
  DeviceInputs const inputs(problem);
  Output const pooled = attend_on_device(inputs.problem(), options);
  std::size_t const bytes = call_workspace_size_bytes(inputs.problem(), options, Device::cuda);
  for (unsigned char const filling : {kPoison, static_cast<unsigned char>(0)}) {
    GuardedMemory const memory(bytes, filling);
    std::span<std::byte> const workspace = memory.span();
    EXPECT_TRUE(same_bits(attend_on_device(inputs.problem(), options, {Device::cuda, nullptr, workspace}), pooled));
    EXPECT_TRUE(memory.guards_hold());
    for (auto const& bad : {workspace.first(bytes - 1), std::span(workspace.data() + 8, bytes)}) {
      EXPECT_THROW(attend_on_device(inputs.problem(), options, {Device::cuda, nullptr, bad}), Error);
    }
  }
}

TEST(CompleteCall, ACapturedOneReadsItsInputsAnew) {
  Case const one{"vc8s", {1, 193, 3333, 2, 1, 128}};
  Options const options = options_of(one.recipe);
  OwnedProblem const first = OwnedProblem::normal(one.sizes, case_seed(82));
  OwnedProblem const second = OwnedProblem::normal(one.sizes, case_seed(83));
  DeviceInputs inputs(one.problem(first));
  Output const of_first = attend_on_device(inputs.problem(), options);
  inputs.replace(one.problem(second));
  Output const of_second = attend_on_device(inputs.problem(), options);

  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  CudaBuffer const workspace(call_workspace_size_bytes(inputs.problem(), options, Device::cuda));
  Results results(inputs.problem());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  attend(inputs.problem(), options, results.o_view(), results.lse_view(),
         {Device::cuda, stream, {static_cast<std::byte*>(workspace.data()), workspace.size()}});
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (OwnedProblem const* const next : {&first, &second, &first}) {
    inputs.replace(one.problem(*next));
    results.poison();
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    EXPECT_TRUE(same_bits(results.download(stream), next == &first ? of_first : of_second));
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

TEST(CompleteCall, RefusalsSayWhatToDo) {
  Case const one{"vc8", {1, 65, 129, 1, 1, 64}};
  OwnedProblem const owned = OwnedProblem::normal(one.sizes, case_seed(84));
  Problem const problem = one.problem(owned);
  auto const reason = [&](char const* options) { return supports_call(problem, options_of(options), Device::cuda).reason; };
  EXPECT_NE(reason("exact").find("qk="), std::string::npos) << reason("exact");
  EXPECT_NE(reason("vsmooth4").find("qk="), std::string::npos) << reason("vsmooth4");
  EXPECT_EQ(reason("vc8"), "");
  Options checked = options_of("vc8s");
  checked.check_finite = true;
  EXPECT_NE(supports_call(problem, checked, Device::cuda).reason.find("check_finite"), std::string::npos);
  EXPECT_THROW((void)prepare(problem, checked, {}, {Device::cuda, nullptr, {}}), Error);
}

}  // namespace
}  // namespace vcattn::cuda_test
