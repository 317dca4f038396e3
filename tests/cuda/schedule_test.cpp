// Grouping state and schedule in device memory: what they hold, where it is, and that nothing is allocated or waited for once it is there.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cuda/attention_case.hpp"
#include "cuda/device_problem.hpp"
#include "device/cuda/check.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::cuda_test {
namespace {

using device::cuda::check;
using Key = GroupingSchedule::Key;

constexpr Sizes kSizes{2, 65, 1300, 2, 2, 64};
constexpr Key kKey{3, 1};

std::span<std::byte> span_of(CudaBuffer const& buffer) { return {static_cast<std::byte*>(buffer.data()), buffer.size()}; }

/// Values that drift from step to step.
std::vector<OwnedProblem> drifting_problems(std::size_t steps, std::uint32_t number, Sizes const& sizes = kSizes) {
  std::vector<OwnedProblem> problems;
  problems.push_back(OwnedProblem::normal(sizes, case_seed(number)));
  while (problems.size() < steps) {
    OwnedProblem next = OwnedProblem::normal(sizes, case_seed(number + static_cast<std::uint32_t>(problems.size())));
    for (std::size_t i = 0; i < next.v.size(); ++i) next.v[i] = 0.9f * problems.back().v[i] + 0.3f * next.v[i];
    problems.push_back(std::move(next));
  }
  return problems;
}

template <typename T>
std::vector<T> downloaded(std::span<T const> array, Stream stream = nullptr) {
  std::vector<T> host(array.size());
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  check(cudaMemcpyAsync(host.data(), array.data(), array.size_bytes(), cudaMemcpyDeviceToHost, cuda_stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(cuda_stream), "cudaStreamSynchronize");
  return host;
}

/// Permutation and centroids of the caller, grouped in place.
class ByHand {
 public:
  ByHand(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k = {})
      : sizes_(grouping_sizes(v, options, seqused_k, Device::cuda)),
        permutation_(sizes_.permutation * sizeof(std::int32_t)),
        centroids_(sizes_.centroids * sizeof(float)) {}

  GroupingBuffers buffers(bool warm) const {
    std::span<float> const centroids(static_cast<float*>(centroids_.data()), sizes_.centroids);
    return {{static_cast<std::int32_t*>(permutation_.data()), sizes_.permutation}, centroids, warm ? centroids : std::span<float>{}};
  }
  std::vector<std::int32_t> permutation() const { return downloaded<std::int32_t>(buffers(false).permutation); }
  std::vector<float> centroids() const { return downloaded<float>(buffers(false).centroids); }

 private:
  GroupingSizes sizes_;
  CudaBuffer permutation_, centroids_;
};

class OwnedStream {
 public:
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~OwnedStream() { (void)cudaStreamDestroy(stream_); }
  OwnedStream(OwnedStream const&) = delete;
  OwnedStream& operator=(OwnedStream const&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Work that was captured, as a graph that can be launched.
class Graph {
 public:
  template <typename Body>
  Graph(cudaStream_t stream, Body const& body) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    body();
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(Graph const&) = delete;
  Graph& operator=(Graph const&) = delete;

  void launch() const { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }
  bool allocates() const {
    std::size_t count = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph_, nodes.data(), &count), "cudaGraphGetNodes");
    return std::any_of(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
      cudaGraphNodeType type{};
      check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      return type == cudaGraphNodeTypeMemAlloc;
    });
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

template <typename Body>
void expect_error(ErrorCode code, std::string const& text, Body const& body) {
  try {
    body();
    ADD_FAILURE() << "no error was thrown; it should say " << text;
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << "'" << error.what() << "' should say " << text;
  }
}

class DeviceSchedule : public testing::Test {
 protected:
  static void SetUpTestSuite() { load_cuda_kernels(); }

  Options options = options_of("vc8s");
  Call const call{Device::cuda, nullptr, {}};
  std::vector<std::int32_t> const seqused{1300, 641};
};

TEST_F(DeviceSchedule, EightStepsEqualGroupingByHand) {
  constexpr std::int64_t kSteps = 8;
  auto const problems = drifting_problems(kSteps, 300);
  struct Plan {
    SchedulePolicy policy;
    std::int32_t refresh_interval;
  };
  for (Plan const& plan :
       {Plan{SchedulePolicy::every_step, 1}, Plan{SchedulePolicy::first_quarter, 2}, Plan{SchedulePolicy::first_quarter, 3}}) {
    for (char const* const order : {"vc8s", "vc8s order=label", "vc8s order=sequence", "vc8s clusters=17"}) {
      options = options_of(order);
      options.warm_iterations = 2;
      GroupingSchedule schedule(plan.policy, plan.refresh_interval, 1.0);
      DeviceInputs inputs(problems[0].problem());
      ByHand const by_hand(inputs.problem().v, options, seqused);
      GroupingState state;
      std::int32_t const* first = nullptr;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        Problem const problem = problems[static_cast<std::size_t>(step)].problem();
        inputs.replace(problem);
        GroupingAction const action = schedule.decide(step, kSteps, kKey);
        auto const permutation = schedule.permutation(step, kSteps, kKey, inputs.problem().v, options, seqused, call);
        if (action != GroupingAction::reuse) {
          bool const warm = action == GroupingAction::regroup_warm;
          EXPECT_EQ(warm, step > 0);
          group_values(inputs.problem().v, options, seqused, by_hand.buffers(warm), call);
          state = group_values(inputs.problem().v, options, seqused, warm ? &state : nullptr, call);
        }
        if (step == 0) first = permutation.data();
        EXPECT_EQ(permutation.data(), first) << order << " step " << step;
        ASSERT_NE(schedule.state(kKey), nullptr);
        EXPECT_EQ(downloaded(permutation), by_hand.permutation()) << order << " step " << step;
        EXPECT_EQ(downloaded(state.permutation_view()), by_hand.permutation()) << order << " step " << step;
        EXPECT_TRUE(same_bits(downloaded(schedule.state(kKey)->centroids_view()), by_hand.centroids())) << order << " step " << step;
        EXPECT_TRUE(same_bits(downloaded(state.centroids_view()), by_hand.centroids())) << order << " step " << step;
        EXPECT_TRUE(inputs.holds(problem)) << "inputs were changed";
      }
    }
  }
}

TEST_F(DeviceSchedule, AColdStateIsThatOfTheStatelessCall) {
  auto const problems = drifting_problems(1, 320);
  DeviceInputs const inputs(problems[0].problem());
  Prepared const prepared = prepare(inputs.problem(), options, {}, call);
  GroupingSchedule schedule;
  auto const permutation = schedule.permutation(0, 40, kKey, inputs.problem().v, options, {}, call);
  EXPECT_EQ(downloaded(permutation), downloaded(prepared.permutation()));
}

TEST_F(DeviceSchedule, TheMemoryOfAStateIsKeptWhileItFits) {
  auto const problems = drifting_problems(1, 321);
  DeviceInputs const inputs(problems[0].problem());
  TensorView const v = inputs.problem().v;
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2);
  auto const permutation_at = [&](std::int64_t step, TensorView const& values) {
    return schedule.permutation(step, 40, kKey, values, options, {}, call);
  };
  auto const first = permutation_at(0, v);
  for (std::int64_t const step : {1, 2, 39, 0}) EXPECT_EQ(permutation_at(step, v).data(), first.data()) << step;
  EXPECT_EQ(schedule.decide(0, 40, kKey), GroupingAction::regroup_warm);
  GroupingState const& state = *schedule.state(kKey);
  EXPECT_EQ(state.device, Device::cuda);
  EXPECT_TRUE(state.permutation.empty());
  EXPECT_EQ(reinterpret_cast<std::byte const*>(state.centroids_view().data()) - reinterpret_cast<std::byte const*>(first.data()),
            static_cast<std::ptrdiff_t>(first.size_bytes()));

  permutation_at(4, v);
  EXPECT_EQ(schedule.decide(0, 40, kKey), GroupingAction::regroup_cold) << "of another generation";
  TensorView shorter = v;
  shorter.shape[1] = 700;
  auto const of_shorter = permutation_at(0, shorter);
  EXPECT_EQ(of_shorter.size(), static_cast<std::size_t>(kSizes.batch * kSizes.num_heads_kv * 700));
  EXPECT_EQ(schedule.state(kKey)->seqlen_kv, 700);
  schedule.forget(kKey);
  EXPECT_EQ(schedule.state(kKey), nullptr);
}

TEST_F(DeviceSchedule, ACapturedWarmStepReadsItsInputsAnew) {
  constexpr std::size_t kSteps = 4;
  auto const problems = drifting_problems(kSteps, 330);
  DeviceInputs inputs(problems[0].problem());
  Problem const& problem = inputs.problem();
  auto const group = [&](GroupingSchedule& schedule, std::int64_t step, Call const& where) {
    return schedule.permutation(step, kSteps, kKey, problem.v, options, {}, where);
  };

  GroupingSchedule direct(SchedulePolicy::every_step);
  std::vector<Output> expected;
  for (std::size_t step = 0; step < kSteps; ++step) {
    inputs.replace(problems[step].problem());
    Problem grouped = problem;
    grouped.permutation = group(direct, static_cast<std::int64_t>(step), call);
    expected.push_back(attend_on_device(grouped, options));
  }
  EXPECT_FALSE(same_bits(expected[1], expected[2]));

  OwnedStream const stream;
  GroupingSchedule schedule(SchedulePolicy::every_step);
  inputs.replace(problems[0].problem());
  Problem grouped = problem;
  grouped.permutation = group(schedule, 0, {Device::cuda, stream.get(), {}});
  check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");  // before the inputs are replaced
  CudaBuffer const group_workspace(grouping_sizes(problem.v, options, {}, Device::cuda).workspace_bytes);
  CudaBuffer const call_workspace(call_workspace_size_bytes(grouped, options, Device::cuda));
  Results results(problem);
  Graph const graph(stream.get(), [&] {
    auto const permutation = group(schedule, 1, {Device::cuda, stream.get(), span_of(group_workspace)});
    EXPECT_EQ(permutation.data(), grouped.permutation.data());
    attend(grouped, options, results.o_view(), results.lse_view(), {Device::cuda, stream.get(), span_of(call_workspace)});
  });
  EXPECT_FALSE(graph.allocates());
  for (std::size_t step = 1; step < kSteps; ++step) {
    inputs.replace(problems[step].problem());
    results.poison();
    graph.launch();
    EXPECT_TRUE(same_bits(results.download(stream.get()), expected[step])) << "replay of step " << step;
    EXPECT_TRUE(inputs.holds(problems[step].problem())) << "inputs were changed";
  }
  EXPECT_EQ(downloaded(schedule.state(kKey)->permutation_view()), downloaded(direct.state(kKey)->permutation_view()));
}

TEST_F(DeviceSchedule, TwoStreamsWithTwoSchedules) {
  constexpr std::size_t kSteps = 6;
  constexpr std::size_t kStreams = 2;
  struct Side {
    std::vector<OwnedProblem> problems;
    std::vector<DeviceInputs> inputs;
    OwnedStream stream;
    GroupingSchedule schedule{SchedulePolicy::every_step};
    std::vector<Results> results;
    std::vector<Output> expected;
  };
  std::vector<Side> sides(kStreams);
  for (std::size_t i = 0; i < kStreams; ++i) {
    Side& side = sides[i];
    side.problems = drifting_problems(kSteps, 340 + 10 * static_cast<std::uint32_t>(i), {1, 65, 6000, 2, 2, 128});
    GroupingSchedule alone(SchedulePolicy::every_step);
    for (std::size_t step = 0; step < kSteps; ++step) {
      side.inputs.emplace_back(side.problems[step].problem());
      side.results.emplace_back(side.inputs[step].problem());
      Problem grouped = side.inputs[step].problem();
      grouped.permutation = alone.permutation(static_cast<std::int64_t>(step), kSteps, kKey, grouped.v, options, {}, call);
      side.expected.push_back(attend_on_device(grouped, options));
    }
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (Side& side : sides) {
      Call const where{Device::cuda, side.stream.get(), {}};
      Problem grouped = side.inputs[step].problem();
      grouped.permutation = side.schedule.permutation(static_cast<std::int64_t>(step), kSteps, kKey, grouped.v, options, {}, where);
      attend(grouped, options, side.results[step].o_view(), side.results[step].lse_view(), where);
    }
  }
  for (Side const& side : sides) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(same_bits(side.results[step].download(side.stream.get()), side.expected[step])) << "step " << step;
    }
  }
}

/// A stream is kept busy by a host function until the calls have returned, or for a time that no call takes.
TEST_F(DeviceSchedule, RegroupingWarmAndReuseWaitForNothing) {
  auto const problems = drifting_problems(1, 360);
  DeviceInputs const inputs(problems[0].problem());
  TensorView const v = inputs.problem().v;
  OwnedStream const stream;
  CudaBuffer const workspace(grouping_sizes(v, options, {}, Device::cuda).workspace_bytes);
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2, 1.0);
  for (std::span<std::byte> const scratch : {span_of(workspace), std::span<std::byte>{}}) {
    Call const where{Device::cuda, stream.get(), scratch};
    schedule.forget(kKey);
    schedule.permutation(0, 4, kKey, v, options, {}, where);
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");

    struct Gate {
      std::atomic<bool> open = false, timed_out = false;
    } gate;
    check(cudaLaunchHostFunc(
              stream.get(),
              [](void* data) {
                auto& waiting = *static_cast<Gate*>(data);
                auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
                while (!waiting.open && !waiting.timed_out) {
                  waiting.timed_out = std::chrono::steady_clock::now() > until;
                  std::this_thread::yield();
                }
              },
              &gate),
          "cudaLaunchHostFunc");
    schedule.permutation(1, 4, kKey, v, options, {}, where);
    schedule.permutation(2, 4, kKey, v, options, {}, where);
    EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
    (void)cudaGetLastError();
    gate.open = true;
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    EXPECT_FALSE(gate.timed_out) << "a call waited for the stream";
  }
}

TEST_F(DeviceSchedule, TheWorkspaceOfTheCallerIsEnoughAndOnlyIt) {
  auto const problems = drifting_problems(2, 370);
  DeviceInputs inputs(problems[0].problem());
  TensorView const v = inputs.problem().v;
  GroupingSizes const sizes = grouping_sizes(v, options, seqused, Device::cuda);
  std::vector<std::int32_t> expected_cold, expected_warm;
  ByHand const pooled(v, options, seqused);
  group_values(v, options, seqused, pooled.buffers(false), call);
  expected_cold = pooled.permutation();
  std::vector<float> const cold_centroids = pooled.centroids();
  inputs.replace(problems[1].problem());
  group_values(v, options, seqused, pooled.buffers(true), call);
  expected_warm = pooled.permutation();

  for (unsigned char const filling : {kPoison, static_cast<unsigned char>(0)}) {
    GuardedMemory const workspace(sizes.workspace_bytes, filling);
    GuardedMemory const permutation(sizes.permutation * sizeof(std::int32_t), filling);
    GuardedMemory const centroids(sizes.centroids * sizeof(float), filling);
    CudaBuffer warm_centroids(cold_centroids.size() * sizeof(float));
    warm_centroids.upload(cold_centroids.data(), warm_centroids.size());
    std::span<std::int32_t> const keys(reinterpret_cast<std::int32_t*>(permutation.span().data()), sizes.permutation);
    std::span<float> const means(reinterpret_cast<float*>(centroids.span().data()), sizes.centroids);
    std::span<float const> const warm(static_cast<float const*>(warm_centroids.data()), sizes.centroids);
    Call const guarded{Device::cuda, nullptr, workspace.span()};

    inputs.replace(problems[0].problem());
    group_values(v, options, seqused, {keys, means}, guarded);
    EXPECT_EQ(downloaded<std::int32_t>(keys), expected_cold);
    EXPECT_TRUE(same_bits(downloaded<float>(means), cold_centroids));
    inputs.replace(problems[1].problem());
    group_values(v, options, seqused, {keys, means, warm}, guarded);
    EXPECT_EQ(downloaded<std::int32_t>(keys), expected_warm);
    EXPECT_TRUE(same_bits(downloaded<float>(means), pooled.centroids()));
    EXPECT_TRUE(same_bits(downloaded(warm), cold_centroids)) << "centroids to start from were changed";
    group_values(v, options, seqused, {keys, {}, warm}, guarded);  // centroids not wanted
    EXPECT_EQ(downloaded<std::int32_t>(keys), expected_warm);
    EXPECT_TRUE(workspace.guards_hold());
    EXPECT_TRUE(permutation.guards_hold());
    EXPECT_TRUE(centroids.guards_hold());
    EXPECT_TRUE(inputs.holds(problems[1].problem())) << "inputs were changed";

    for (auto const& bad :
         {workspace.span().first(sizes.workspace_bytes - 1), std::span(workspace.span().data() + 8, sizes.workspace_bytes)}) {
      expect_error(ErrorCode::invalid_argument, "workspace", [&] {
        group_values(v, options, seqused, {keys, means}, {Device::cuda, nullptr, bad});
      });
    }
  }
}

TEST_F(DeviceSchedule, RefusesAStateThatDoesNotFit) {
  auto const problems = drifting_problems(1, 380);
  Problem const on_host = problems[0].problem();
  DeviceInputs const inputs(on_host);
  TensorView const v = inputs.problem().v;
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2);
  schedule.permutation(0, 40, kKey, v, options, {}, call);
  TensorView shorter = v;
  shorter.shape[1] -= 1;
  TensorView half = v;
  half.dtype = DType::bf16;
  for (std::int64_t const step : {1, 2, 30}) {  // reuse, warm start, reuse after the window
    auto const refused = [&](std::string const& text, TensorView const& values, std::span<std::int32_t const> used, Call const& where) {
      expect_error(ErrorCode::invalid_argument, text, [&] { schedule.permutation(step, 40, kKey, values, options, used, where); });
    };
    refused("seqlen_kv", shorter, {}, call);
    refused("dtype", half, {}, call);
    refused("seqused_k", v, seqused, call);
    refused("device cpu, got a state with cuda", on_host.v, {}, {});
  }
  Options more = options;
  more.clusters = 99;
  expect_error(ErrorCode::invalid_argument, "99 clusters", [&] { schedule.permutation(2, 40, kKey, v, more, {}, call); });

  Key const on_cpu{4, 0};
  schedule.permutation(0, 40, on_cpu, on_host.v, options);
  for (std::int64_t const step : {1, 2}) {
    expect_error(ErrorCode::invalid_argument, "device cuda 0, got a state with cpu",
                 [&] { schedule.permutation(step, 40, on_cpu, v, options, {}, call); });
  }
  GroupingState const host_state = group_values(on_host.v, options);
  expect_error(ErrorCode::invalid_argument, "device cuda 0", [&] { (void)group_values(v, options, {}, &host_state, call); });
  EXPECT_EQ(schedule.permutation(1, 40, kKey, v, options, {}, call).size(), schedule.state(kKey)->permutation_view().size());
  schedule.forget(kKey);
  EXPECT_EQ(schedule.permutation(1, 40, kKey, shorter, options, {}, call).size(),
            static_cast<std::size_t>(kSizes.batch * kSizes.num_heads_kv * shorter.seqlen()));
}

TEST_F(DeviceSchedule, RefusesWhatGroupingThereDoesNotServe) {
  auto const problems = drifting_problems(1, 390);
  DeviceInputs const inputs(problems[0].problem());
  TensorView const v = inputs.problem().v;
  GroupingSizes const sizes = grouping_sizes(v, options, {}, Device::cuda);
  EXPECT_EQ(sizes.clusters, 10);  // 1300 / 128
  options.clusters = 300;
  expect_error(ErrorCode::unsupported, "256", [&] { (void)grouping_sizes(v, options, {}, Device::cuda); });
  options.clusters = 0;
  TensorView wide = v;
  wide.shape[3] = 136;
  expect_error(ErrorCode::unsupported, "head_dim", [&] { (void)group_values(wide, options, {}, nullptr, call); });
  ByHand const arrays(v, options);
  GroupingBuffers buffers = arrays.buffers(false);
  buffers.centroids = buffers.centroids.first(sizes.centroids - 1);
  expect_error(ErrorCode::invalid_argument, "grouping.centroids", [&] { group_values(v, options, {}, buffers, call); });
  TensorView empty = v;
  empty.shape[1] = 0;
  GroupingSchedule schedule;
  EXPECT_TRUE(schedule.permutation(0, 4, kKey, empty, options, {}, call).empty());
}

}  // namespace
}  // namespace vcattn::cuda_test
