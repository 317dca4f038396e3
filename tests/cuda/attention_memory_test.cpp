// The CUDA attention and memory: every output format and stride, nothing written beside the view, nothing read beside the slab, streams and
// graphs.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "device/cuda/check.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/codecs.hpp"

namespace vcattn::cuda_test {
namespace {

using device::cuda::check;

constexpr unsigned char kPoison = 0xFF;
constexpr std::int64_t kGuardElements = 64;

/// Order of dimensions in memory, outermost first, with room after each of them.
struct MemoryOrder {
  char const* name;
  std::array<std::size_t, 4> order;
  std::int64_t channel_step;            // elements from one channel to the next where channels are innermost
  std::int64_t gap;                     // unused elements behind every run
  std::array<bool, 4> reversed = {};    // dimensions that run backwards
  std::int64_t first = kGuardElements;  // element of the buffer where the tensor begins
};

constexpr std::size_t kB = 0, kS = 1, kH = 2, kD = 3;
constexpr MemoryOrder kMemoryOrders[] = {{"NHD", {kB, kS, kH, kD}, 1, 0},
                                         {"HND", {kB, kH, kS, kD}, 1, 0},
                                         {"NHD at an odd element", {kB, kS, kH, kD}, 1, 0, {}, kGuardElements + 1},
                                         {"NHD with even gaps", {kB, kS, kH, kD}, 1, 8},
                                         {"HND with odd gaps", {kB, kH, kS, kD}, 1, 3},
                                         {"rows backwards", {kB, kS, kH, kD}, 1, 0, {false, true, false, false}},
                                         {"heads and sequences backwards", {kB, kH, kS, kD}, 1, 2, {true, false, true, false}},
                                         {"channels backwards", {kB, kS, kH, kD}, 1, 0, {false, false, false, true}},
                                         {"every second element", {kB, kS, kH, kD}, 2, 0},
                                         {"channels outermost", {kD, kB, kH, kS}, 1, 1}};

/// A tensor inside a buffer of `elements`.
struct Placement {
  std::array<std::int64_t, 4> stride{};
  std::int64_t first = 0;  // element of the buffer at index (0, 0, 0, 0)
  std::int64_t elements = 0;
};

Placement place(MemoryOrder const& order, std::array<std::int64_t, 4> const& shape) {
  Placement placement;
  placement.first = order.first;
  std::int64_t run = order.channel_step;
  for (std::size_t i = 4; i-- > 0;) {
    std::size_t const d = order.order[i];
    placement.stride[d] = order.reversed[d] ? -run : run;
    if (order.reversed[d]) placement.first += run * (shape[d] - 1);
    run = run * shape[d] + order.gap;
  }
  placement.elements = order.first + run + kGuardElements;
  return placement;
}

std::uint32_t encode(float x, DType dtype) {
  if (dtype == DType::f32) return std::bit_cast<std::uint32_t>(x);
  return (dtype == DType::f16 ? reference::fp16() : reference::bf16()).encode(static_cast<double>(x));
}

/// What the buffer must hold: the values where the tensor is, poison elsewhere.
std::vector<unsigned char> expected_bytes(std::vector<float> const& values, std::array<std::int64_t, 4> const& shape,
                                          Placement const& placement, DType dtype) {
  auto const bytes = static_cast<std::size_t>(dtype_bytes(dtype));
  std::vector<unsigned char> expected(static_cast<std::size_t>(placement.elements) * bytes, kPoison);
  std::size_t i = 0;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t s = 0; s < shape[1]; ++s) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          auto const& stride = placement.stride;
          std::int64_t const element = placement.first + b * stride[0] + s * stride[1] + h * stride[2] + d * stride[3];
          std::uint32_t const code = encode(values[i++], dtype);
          std::memcpy(expected.data() + static_cast<std::size_t>(element) * bytes, &code, bytes);
        }
      }
    }
  }
  return expected;
}

/// Every byte of the buffer after attention() into it.
std::vector<unsigned char> written_bytes(Prepared const& on_device, Placement const& placement, DType dtype) {
  std::int64_t const bytes = dtype_bytes(dtype);
  CudaBuffer buffer(static_cast<std::size_t>(placement.elements * bytes));
  buffer.fill(kPoison);
  attention(on_device,
            {static_cast<std::byte*>(buffer.data()) + placement.first * bytes, dtype, output_shape(on_device), placement.stride});
  std::vector<unsigned char> written(buffer.size());
  buffer.download(written.data(), written.size());
  return written;
}

std::vector<Case> output_cases() {
  return {{"vc8", {2, 129, 193, 4, 2, 72}},
          {"vc8", {2, 65, 257, 2, 1, 128}, true},
          {"vc8s", {1, 191, 130, 3, 3, 64}},
          {"vc8s", {1, 200, 300, 2, 1, 40}, false, {}, {0, 0, 129, 200}, {0, 10, 140, 300}},
          {"fp8", {3, 66, 129, 2, 2, 128}, false, {0, 1, 129}}};
}

Prepared prepare_case(Case const& attention_case, std::uint32_t case_number) {
  OwnedProblem const owned = OwnedProblem::normal(attention_case.sizes, case_seed(case_number));
  return prepare(attention_case.problem(owned), options_of(attention_case.recipe));
}

TEST(Outputs, EveryFormatAndStrideAndNothingBeside) {
  for (Case const& attention_case : output_cases()) {
    Prepared const prepared = prepare_case(attention_case, 20);
    Prepared const on_device = to_cuda(prepared);
    Output const plain = run(on_device);
    expect_close(plain, expected_result(prepared), attention_case.name());
    for (MemoryOrder const& order : kMemoryOrders) {
      Placement const placement = place(order, output_shape(prepared));
      for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) {
        EXPECT_TRUE(written_bytes(on_device, placement, dtype) == expected_bytes(plain.o, output_shape(prepared), placement, dtype))
            << attention_case.name() << ", " << dtype_name(dtype) << ", " << order.name;
      }
    }
  }
}

TEST(Outputs, NothingBesideLse) {
  for (Case const& attention_case : output_cases()) {
    Prepared const on_device = to_cuda(prepare_case(attention_case, 21));
    Output const plain = run(on_device);
    for (std::size_t const guard : {1, 16}) {
      DeviceOutput const memory(on_device);
      CudaBuffer lse((plain.lse.size() + 2 * guard) * sizeof(float));
      lse.fill(kPoison);
      attention(on_device, memory.o(), {static_cast<float*>(lse.data()) + guard, plain.lse.size()});
      std::vector<float> written(lse.size() / sizeof(float));
      lse.download(written.data(), lse.size());
      std::vector<float> expected(written.size(), std::bit_cast<float>(0xFFFFFFFFu));
      std::copy(plain.lse.begin(), plain.lse.end(), expected.begin() + static_cast<std::ptrdiff_t>(guard));
      EXPECT_TRUE(same_bits(written, expected)) << attention_case.name() << " guard " << guard;
    }
  }
}

TEST(Isolation, PaddingRowsOfTheCallerNeverMatter) {
  for (char const* recipe : {"vc8", "vc8s", "fp8", "vc8-paper"}) {
    Case const attention_case{recipe, {2, 66, 300, 4, 2, 64}, false, {130, 0}};
    OwnedProblem owned = OwnedProblem::normal(attention_case.sizes, case_seed(22));
    Options const options = options_of(recipe);
    Output const clean = run_on_device(prepare(attention_case.problem(owned), options));
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t row = attention_case.seqused_k[static_cast<std::size_t>(b)]; row < 300; ++row) {
        std::fill_n(owned.k_row(b, row), 2 * 64, std::numeric_limits<float>::quiet_NaN());
        std::fill_n(owned.v_row(b, row), 2 * 64, std::numeric_limits<float>::quiet_NaN());
      }
    }
    EXPECT_TRUE(same_bits(run_on_device(prepare(attention_case.problem(owned), options)), clean)) << recipe;
  }
}

/// Bytes between the sections of a slab, and behind it, are NaN codes.
TEST(Isolation, NothingIsReadBesideTheSections) {
  constexpr std::size_t kGuardBytes = 1 << 20;
  for (Case const& attention_case : output_cases()) {
    OwnedProblem const owned = OwnedProblem::normal(attention_case.sizes, case_seed(23));
    Problem const problem = attention_case.problem(owned);
    Options const options = options_of(attention_case.recipe);
    Output const clean = run_on_device(prepare(problem, options));

    std::size_t const bytes = prepared_size_bytes(problem, options);
    std::vector<std::byte> host(bytes + formats::kSectionAlignment, std::byte{kPoison});
    std::size_t const misaligned = reinterpret_cast<std::uintptr_t>(host.data()) % formats::kSectionAlignment;
    Prepared const prepared = prepare(problem, options, {host.data() + (formats::kSectionAlignment - misaligned), bytes});
    CudaBuffer storage(bytes + kGuardBytes);
    storage.fill(kPoison);
    Output const poisoned = run(to_cuda(prepared, {static_cast<std::byte*>(storage.data()), bytes}));
    EXPECT_TRUE(same_bits(poisoned, clean)) << attention_case.name();

    std::vector<std::byte> after(storage.size());
    storage.download(after.data(), after.size());
    EXPECT_EQ(std::memcmp(after.data(), prepared.impl().slab, bytes), 0) << attention_case.name() << ": the slab was written";
    EXPECT_EQ(std::count(after.begin() + static_cast<std::ptrdiff_t>(bytes), after.end(), std::byte{kPoison}),
              static_cast<std::ptrdiff_t>(kGuardBytes))
        << attention_case.name() << ": memory behind the slab was written";
  }
}

/// A stream that does not wait for the default one.
class OwnStream {
 public:
  OwnStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~OwnStream() { (void)cudaStreamDestroy(stream_); }
  OwnStream(OwnStream const&) = delete;
  OwnStream& operator=(OwnStream const&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// What `work` enqueues on a stream, to be repeated.
class CapturedGraph {
 public:
  CapturedGraph(OwnStream const& stream, std::function<void(Stream)> const& work) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    work(stream.get());
    check(cudaStreamEndCapture(stream.get(), &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~CapturedGraph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  CapturedGraph(CapturedGraph const&) = delete;
  CapturedGraph& operator=(CapturedGraph const&) = delete;

  void launch(OwnStream const& stream) const { check(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST(Streams, ACapturedCallReadsTheSlabAnew) {
  for (char const* recipe : {"vc8", "vsmooth8", "vc8s", "fp8", "vc8-paper"}) {
    bool const split = std::string(recipe) == "vc8";  // the memory for parts of query tiles is a part of the graph, too
    Sizes const sizes{2, split ? 65 : 193, split ? 3333 : 385, 2, 1, 128};
    OwnedProblem const first_inputs = OwnedProblem::normal(sizes, case_seed(24));
    OwnedProblem second_inputs = OwnedProblem::normal(sizes, case_seed(25));
    for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) {  // other score variants than in the first one
      for (std::int64_t d = 0; d < sizes.head_dim; ++d) second_inputs.q_row(0, i, 1)[d] *= 1000.0f;
    }
    Prepared const first = prepare(first_inputs.problem(), options_of(recipe));
    Prepared const second = prepare(second_inputs.problem(), options_of(recipe));
    Output const first_output = run_on_device(first);
    Output const second_output = run_on_device(second);
    expect_close(second_output, expected_result(second), fmt::format("{} second problem of a graph", recipe));

    CudaBuffer const storage(first.size_bytes());
    std::span<std::byte> const slab(static_cast<std::byte*>(storage.data()), storage.size());
    Prepared const on_device = to_cuda(first, slab);
    DeviceOutput memory(on_device);
    OwnStream const stream;
    CapturedGraph const graph(stream, [&](Stream s) { attention(on_device, memory.o(), memory.lse(), {}, s); });
    for (auto const* const next : {&first, &second, &first}) {
      Prepared const replaced = to_cuda(*next, slab);
      memory.poison();
      graph.launch(stream);
      EXPECT_TRUE(same_bits(memory.download(stream.get()), next == &first ? first_output : second_output)) << recipe;
    }
  }
}

/// Run alone in a process (`make test-gpu` does): nothing that the call needs may be made during the capture.
TEST(Streams, ACapturedCallMayBeTheFirst) {
  Prepared const on_device = to_cuda(prepare_case({"vc8", {1, 65, 3333, 2, 1, 128}}, 28));
  DeviceOutput memory(on_device);
  OwnStream const stream;
  CapturedGraph const graph(stream, [&](Stream s) { attention(on_device, memory.o(), memory.lse(), {}, s); });
  memory.poison();
  graph.launch(stream);
  EXPECT_TRUE(same_bits(memory.download(stream.get()), run(on_device)));
}

TEST(Workspace, OfTheCallerIsEnoughAndOnlyIt) {
  Case const attention_case{"vc8", {1, 200, 5003, 2, 1, 128}};
  OwnedProblem const owned = OwnedProblem::normal(attention_case.sizes, case_seed(29));
  Problem const problem = attention_case.problem(owned);
  Options const options = options_of(attention_case.recipe);
  Prepared const on_device = to_cuda(prepare(problem, options));
  std::size_t const bytes = workspace_size_bytes(problem, options, Device::cuda);
  ASSERT_GT(bytes, 0u);
  constexpr std::size_t kGuard = 256;
  CudaBuffer memory(bytes + 2 * kGuard);
  memory.fill(kPoison);
  std::span<std::byte> const workspace(static_cast<std::byte*>(memory.data()) + kGuard, bytes);
  DeviceOutput const output(on_device);
  attention(on_device, output.o(), output.lse(), workspace);
  EXPECT_TRUE(same_bits(output.download(), run(on_device)));
  std::vector<unsigned char> host(memory.size());
  memory.download(host.data(), host.size());
  auto const untouched = [&](std::size_t begin) {
    return std::all_of(host.begin() + static_cast<std::ptrdiff_t>(begin), host.begin() + static_cast<std::ptrdiff_t>(begin + kGuard),
                       [](unsigned char byte) { return byte == kPoison; });
  };
  EXPECT_TRUE(untouched(0) && untouched(kGuard + bytes));
  for (auto const& bad : {workspace.first(bytes - 1), std::span(workspace.data() + 8, bytes)}) {
    EXPECT_THROW(attention(on_device, output.o(), output.lse(), bad), Error);
  }
}

TEST(Streams, TwoAtOnceDoNotMeet) {
  Prepared const on_device[] = {to_cuda(prepare_case({"vc8", {1, 1025, 4095, 2, 1, 128}}, 26)),
                                to_cuda(prepare_case({"vc8s", {2, 509, 1531, 4, 2, 64}, true}, 27))};
  Output const alone[] = {run(on_device[0]), run(on_device[1])};
  OwnStream const streams[2];
  DeviceOutput memory[] = {DeviceOutput(on_device[0]), DeviceOutput(on_device[1])};
  for (int round = 0; round < 20; ++round) {
    for (DeviceOutput& output : memory) output.poison();
    for (int repetition = 0; repetition < 3; ++repetition) {
      for (std::size_t i = 0; i < 2; ++i) attention(on_device[i], memory[i].o(), memory[i].lse(), {}, streams[i].get());
    }
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(memory[i].download(streams[i].get()), alone[i])) << round << " " << i;
  }
}

}  // namespace
}  // namespace vcattn::cuda_test
