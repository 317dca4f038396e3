// Grouping on the device: permutations, reproducibility, layouts, and the energy removed against the CPU's. Captures are read from data/,
// or from the folder that VCATTN_CAPTURES names. Exits with 2 without a usable GPU.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "cuda/sample.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/runtime.hpp"
#include "grouping/cuda/group_values.hpp"
#include "grouping/values.hpp"

namespace vcattn::cuda_test {
namespace {

using device::cuda::check;
using formats::SequenceExtent;
using test::grouping_options;
using test::Values;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint16_t encode(float x, DType dtype) { return dtype == DType::f16 ? core::fp16_encode(x) : core::bf16_encode(x); }

/// How a tensor lies in memory.
struct Placement {
  char const* name;
  bool heads_outside = false;  // [B, H, S, D] instead of [B, S, H, D]
  std::int64_t channel_step = 1;
  std::int64_t gap = 0;    // elements behind every row of a head
  std::int64_t first = 0;  // element at which the tensor begins
  bool rows_backwards = false;
};
constexpr Placement kContiguous{"NHD"};

/// V on the host as the device gets it.
struct Input {
  std::vector<std::byte> bytes;
  std::int64_t first = 0;  // element
  TensorView v;            // of `bytes`
  bool varlen = false;
  std::vector<SequenceExtent> sequences;

  std::vector<std::int32_t> seqused() const {
    std::vector<std::int32_t> used;
    for (auto const& sequence : sequences) used.push_back(static_cast<std::int32_t>(sequence.seqlen_kv));
    return used;
  }
};

/// lengths: valid rows of every sequence, empty: all rows.
std::vector<SequenceExtent> equal_sequences(std::int64_t batch, std::int64_t rows, std::vector<std::int64_t> const& lengths) {
  std::vector<SequenceExtent> sequences(static_cast<std::size_t>(batch));
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    sequences[b].seqlen_kv = lengths.empty() ? rows : lengths[b];
    sequences[b].rows_kv = rows;
    sequences[b].row_begin_kv = static_cast<std::int64_t>(b) * rows;
  }
  return sequences;
}

Input make_input(Values const& values, DType dtype, std::vector<std::int64_t> const& lengths = {},
                 Placement const& placement = kContiguous) {
  auto const [batch, rows, heads, channels] = values.shape;
  std::int64_t const row_elements = channels * placement.channel_step + placement.gap;
  Input input;
  input.sequences = equal_sequences(batch, rows, lengths);
  std::array<std::int64_t, 4> stride =
      placement.heads_outside ? std::array{heads * rows * row_elements, row_elements, rows * row_elements, placement.channel_step}
                              : std::array{rows * heads * row_elements, heads * row_elements, row_elements, placement.channel_step};
  input.first = placement.first;
  if (placement.rows_backwards) {
    input.first += (rows - 1) * stride[1];
    stride[1] = -stride[1];
  }
  auto const element_bytes = static_cast<std::size_t>(dtype_bytes(dtype));
  input.bytes.assign(static_cast<std::size_t>(placement.first + batch * rows * heads * row_elements) * element_bytes, std::byte{0xFF});
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t s = 0; s < rows; ++s) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < channels; ++d) {
          float const x = const_cast<Values&>(values).at(b, s, h, d);
          auto const at = static_cast<std::size_t>(input.first + b * stride[0] + s * stride[1] + h * stride[2] + d * stride[3]);
          std::uint16_t const half = dtype == DType::f32 ? std::uint16_t{0} : encode(x, dtype);
          std::memcpy(input.bytes.data() + at * element_bytes, dtype == DType::f32 ? static_cast<void const*>(&x) : &half, element_bytes);
        }
      }
    }
  }
  input.v = {input.bytes.data() + static_cast<std::size_t>(input.first) * element_bytes, dtype, {batch, rows, heads, channels}, stride};
  return input;
}

struct Output {
  std::int32_t clusters = 0;
  std::vector<float> centroids;
  std::vector<std::int32_t> permutation;
};

void expect_same_bits(Output const& a, Output const& b, std::string const& what) {
  EXPECT_EQ(a.permutation, b.permutation) << what;
  ASSERT_EQ(a.centroids.size(), b.centroids.size()) << what;
  EXPECT_EQ(std::memcmp(a.centroids.data(), b.centroids.data(), a.centroids.size() * sizeof(float)), 0) << what << ": centroids";
}

/// Device memory of one problem.
class OnDevice {
 public:
  static constexpr std::size_t kGuardBytes = 1024;

  OnDevice(Input const& input, Options const& options, unsigned char poison) : options_(options), poison_(poison) {
    std::size_t const extents_bytes = input.sequences.size() * sizeof(SequenceExtent);
    bytes_ = device::cuda::allocate(input.bytes.size());
    extents_ = device::cuda::allocate(extents_bytes);
    device::cuda::copy_to_device(bytes_.get(), input.bytes.data(), input.bytes.size());
    device::cuda::copy_to_device(extents_.get(), input.sequences.data(), extents_bytes);
    values_ = {input.v, input.varlen, input.sequences, static_cast<SequenceExtent const*>(extents_.get())};
    values_.v.data = static_cast<std::byte*>(bytes_.get()) + input.first * dtype_bytes(input.v.dtype);
    clusters_ = grouping::cuda::num_clusters(values_, options);
    std::int64_t const heads = std::ssize(input.sequences) * input.v.num_heads();
    centroids_.resize(static_cast<std::size_t>(heads * clusters_ * input.v.head_dim()));
    permutation_.resize(static_cast<std::size_t>(input.v.batch() * input.v.seqlen() * input.v.num_heads()));
    workspace_bytes_ = grouping::cuda::workspace_bytes(values_, options);
    device_centroids_ = filled(centroids_.size() * sizeof(float));
    device_permutation_ = filled(permutation_.size() * sizeof(std::int32_t));
    workspace_ = filled(workspace_bytes_);
  }

  void set_centroids(std::vector<float> const& centroids) {
    ASSERT_EQ(centroids.size(), centroids_.size());
    device::cuda::copy_to_device(device_centroids_.get(), centroids.data(), centroids.size() * sizeof(float));
  }
  void launch(bool warm, cudaStream_t stream) {
    grouping::cuda::group_values(values_, options_, warm, static_cast<float*>(device_centroids_.get()),
                                 static_cast<std::int32_t*>(device_permutation_.get()), static_cast<std::byte*>(workspace_.get()), stream);
  }
  Output download(cudaStream_t stream) {
    device::cuda::copy_to_host(centroids_.data(), device_centroids_.get(), centroids_.size() * sizeof(float), stream);
    device::cuda::copy_to_host(permutation_.data(), device_permutation_.get(), permutation_.size() * sizeof(std::int32_t), stream);
    expect_guarded(device_centroids_, centroids_.size() * sizeof(float), "centroids");
    expect_guarded(device_permutation_, permutation_.size() * sizeof(std::int32_t), "permutation");
    expect_guarded(workspace_, workspace_bytes_, "workspace");
    return {clusters_, centroids_, permutation_};
  }

 private:
  /// Poisoned memory, and some more behind it.
  std::shared_ptr<void> filled(std::size_t bytes) const {
    std::shared_ptr<void> memory = device::cuda::allocate(bytes + kGuardBytes);
    device::cuda::fill(memory.get(), poison_, bytes + kGuardBytes);
    return memory;
  }
  void expect_guarded(std::shared_ptr<void> const& memory, std::size_t bytes, char const* what) const {
    std::vector<unsigned char> guard(kGuardBytes);
    device::cuda::copy_to_host(guard.data(), static_cast<std::byte*>(memory.get()) + bytes, kGuardBytes, nullptr);
    EXPECT_EQ(std::ranges::count(guard, poison_), std::ssize(guard)) << "written behind the " << what;
  }

  Options options_;
  unsigned char poison_;
  std::shared_ptr<void> bytes_, extents_, device_centroids_, device_permutation_, workspace_;
  grouping::cuda::DeviceValues values_;
  std::int32_t clusters_ = 0;
  std::size_t workspace_bytes_ = 0;
  std::vector<float> centroids_;
  std::vector<std::int32_t> permutation_;
};

Output group(Input const& input, Options const& options, Output const* warm = nullptr, unsigned char poison = 0xFF) {
  OnDevice problem(input, options, poison);
  if (warm != nullptr) problem.set_centroids(warm->centroids);
  problem.launch(warm != nullptr, nullptr);
  return problem.download(nullptr);
}

/// Every head: a permutation of the valid rows in front, padding in its place behind them.
void expect_valid(Input const& input, Output const& output, std::string const& what) {
  for (auto const& sequence : input.sequences) {
    for (std::int64_t head = 0; head < input.v.num_heads(); ++head) {
      auto const begin = output.permutation.begin() + input.v.num_heads() * sequence.row_begin_kv + head * sequence.rows_kv;
      std::vector<std::int32_t> rows(begin, begin + sequence.rows_kv);
      std::sort(rows.begin(), rows.begin() + sequence.seqlen_kv);
      std::vector<std::int32_t> expected(rows.size());
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(rows, expected) << what << ", head " << head;
    }
  }
}

std::vector<double> energies(Input const& input, std::vector<std::int32_t> const& permutation, Options const& options) {
  return value_energy_removed(input.v, permutation, options.v_block, input.seqused());
}

struct Case {
  test::Shape shape;
  DType dtype = DType::bf16;
  GroupOrder order = GroupOrder::chain_sorted;
  std::int32_t clusters = 0;
  std::int32_t v_block = 128;
  std::vector<std::int64_t> lengths = {};

  Options options() const {
    Options options = grouping_options(order, clusters);
    options.v_block = v_block;
    return options;
  }
  std::string name() const {
    return fmt::format("[{}, {}, {}, {}] {} order {} clusters {} v_block {}{}", shape.batch, shape.seqlen, shape.heads, shape.head_dim,
                       dtype_name(dtype), static_cast<int>(order), clusters, v_block, lengths.empty() ? "" : " padded");
  }
};

/// Patterns of 20 classes under noise, rows behind `lengths` NaN.
Values values_of(Case const& c) {
  Values values = test::normal_values(c.shape, 5, 0.8f);
  test::add_patterns(values, 6, [](std::int64_t row) { return row / 16 * 7 % 20; });
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    for (std::int64_t s = c.lengths[b]; s < c.shape.seqlen; ++s) {
      for (std::int64_t i = 0; i < c.shape.heads * c.shape.head_dim; ++i) values.at(static_cast<std::int64_t>(b), s, 0, i) = kNan;
    }
  }
  return values;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t const rows : {1, 2, 5, 127, 128, 129, 257, 1021, 1024, 1537, 4099}) all.push_back({{1, rows, 2, 128}});
  for (std::int64_t const head_dim : {1, 40, 41, 64, 72, 96, 128}) {
    for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) all.push_back({{1, 601, 3, head_dim}, dtype});
  }
  for (GroupOrder const order :
       {GroupOrder::sequence, GroupOrder::label, GroupOrder::chain, GroupOrder::chain_sorted, GroupOrder::automatic})
    all.push_back({{2, 2003, 2, 128}, DType::bf16, order});
  for (std::int32_t const clusters : {1, 2, 3, 15, 16, 17, 32, 64, 100, 128, 255, 256}) {
    all.push_back({{1, 3001, 2, 128}, DType::bf16, GroupOrder::chain_sorted, clusters});
    all.push_back({{1, 509, 1, 64}, DType::f16, GroupOrder::chain_sorted, clusters});
  }
  for (std::int32_t const v_block : {32, 64, 128}) all.push_back({{1, 2777, 2, 128}, DType::bf16, GroupOrder::chain_sorted, 24, v_block});
  all.push_back({{3, 1500, 2, 128}, DType::bf16, GroupOrder::chain_sorted, 0, 128, {1500, 0, 777}});
  all.push_back({{3, 300, 1, 64}, DType::f32, GroupOrder::chain_sorted, 64, 64, {1, 33, 299}});
  all.push_back({{1, 20011, 1, 128}, DType::bf16, GroupOrder::chain_sorted, 16});  // a sample of every fourth row
  return all;
}

TEST(GpuGrouping, PermutationsAreValidAndBitsRepeat) {
  for (Case const& c : cases()) {
    if (!in_sample()) continue;
    Input const input = make_input(values_of(c), c.dtype, c.lengths);
    Output const cold = group(input, c.options());
    expect_valid(input, cold, c.name());
    expect_same_bits(cold, group(input, c.options(), nullptr, 0x5A), c.name() + ": two runs");
    for (float const x : cold.centroids) ASSERT_TRUE(std::isfinite(x)) << c.name();
    Output const warm = group(input, c.options(), &cold);
    expect_valid(input, warm, c.name() + " warm");
    expect_same_bits(warm, group(input, c.options(), &cold, 0x00), c.name() + ": two warm runs");
  }
}

TEST(GpuGrouping, NumberOfClustersIsTheCpus) {
  for (GroupOrder const order : {GroupOrder::label, GroupOrder::chain_sorted}) {
    for (std::int64_t const rows : {3, 300, 5000, 32000}) {
      Input const input = make_input(test::normal_values({1, rows, 1, 1}, 1), DType::f32);
      grouping::cuda::DeviceValues const values{input.v, false, input.sequences, nullptr};
      EXPECT_EQ(grouping::cuda::num_clusters(values, grouping_options(order)), std::min<std::int64_t>(default_clusters(rows, order), rows));
    }
  }
}

TEST(GpuGrouping, LayoutsGiveTheSameBits) {
  Case const c{{2, 900, 3, 64}, DType::f16, GroupOrder::chain_sorted, 12};
  Values const values = values_of(c);
  for (DType const dtype : {DType::bf16, DType::f16, DType::f32}) {
    Output const expected = group(make_input(values, dtype), c.options());
    for (Placement const& placement :
         {Placement{"HND", true}, Placement{"gaps of 8", false, 1, 8}, Placement{"from element 8", true, 1, 16, 8},
          Placement{"rows backwards", false, 1, 0, 0, true}, Placement{"from element 1", false, 1, 0, 1}, Placement{"odd gaps", true, 1, 3},
          Placement{"every second element", false, 2, 1, 3}}) {
      if (!in_sample()) continue;
      Input const input = make_input(values, dtype, {}, placement);
      expect_same_bits(expected, group(input, c.options()), fmt::format("{} {}", dtype_name(dtype), placement.name));
    }
  }
}

TEST(GpuGrouping, HeadsDoNotDependOnEachOther) {
  Case const c{{2, 1400, 3, 128}, DType::bf16, GroupOrder::chain_sorted, 20};
  Values const values = values_of(c);
  Output const together = group(make_input(values, c.dtype), c.options());
  auto const head_rows = static_cast<std::ptrdiff_t>(c.shape.seqlen);
  for (std::int64_t b = 0; b < c.shape.batch; ++b) {
    for (std::int64_t h = 0; h < c.shape.heads; ++h) {
      Values one{{1, c.shape.seqlen, 1, c.shape.head_dim}, {}};
      for (std::int64_t s = 0; s < c.shape.seqlen; ++s) {
        for (std::int64_t d = 0; d < c.shape.head_dim; ++d) one.data.push_back(const_cast<Values&>(values).at(b, s, h, d));
      }
      auto const begin = together.permutation.begin() + (b * c.shape.heads + h) * head_rows;
      EXPECT_EQ(group(make_input(one, c.dtype), c.options()).permutation, std::vector<std::int32_t>(begin, begin + head_rows));
    }
  }
}

TEST(GpuGrouping, PaddingIsNotRead) {
  Case const c{{3, 1300, 2, 128}, DType::bf16, GroupOrder::chain_sorted, 0, 128, {1300, 640, 129}};
  Values values = values_of(c);
  Output const with_nan = group(make_input(values, c.dtype, c.lengths), c.options());
  for (float& x : values.data) x = std::isnan(x) ? 1e30f : x;
  expect_same_bits(with_nan, group(make_input(values, c.dtype, c.lengths), c.options()), "padding");
}

TEST(GpuGrouping, SegmentsEqualSeparateCalls) {
  std::vector<std::int64_t> const lengths = {700, 0, 1, 1555, 128};
  std::int64_t const total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Case const c{{1, total, 2, 128}, DType::bf16, GroupOrder::chain_sorted, 16};
  Values const values = values_of(c);
  Input input = make_input(values, c.dtype);
  input.varlen = true;
  input.sequences.clear();
  std::int64_t begin = 0;
  for (std::int64_t const length : lengths) {
    SequenceExtent extent;
    extent.seqlen_kv = extent.rows_kv = length;
    extent.row_begin_kv = begin;
    input.sequences.push_back(extent);
    begin += length;
  }
  Output const together = group(input, c.options());
  expect_valid(input, together, "varlen");
  for (auto const& sequence : input.sequences) {
    if (sequence.rows_kv == 0) continue;
    auto const row_elements = static_cast<std::ptrdiff_t>(c.shape.heads * c.shape.head_dim);
    auto const first = values.data.begin() + sequence.row_begin_kv * row_elements;
    Values const segment{{1, sequence.rows_kv, c.shape.heads, c.shape.head_dim}, {first, first + sequence.rows_kv * row_elements}};
    auto const rows = together.permutation.begin() + c.shape.heads * sequence.row_begin_kv;
    EXPECT_EQ(group(make_input(segment, c.dtype), c.options()).permutation,
              std::vector<std::int32_t>(rows, rows + c.shape.heads * sequence.rows_kv));
  }
}

TEST(GpuGrouping, DegenerateRowsGiveValidPermutations) {
  Case const c{{1, 1111, 1, 128}, DType::bf16, GroupOrder::chain_sorted, 64};
  Values values = values_of(c);
  Values identical = values;
  std::ranges::fill(identical.data, 3.0f);
  Input const same = make_input(identical, c.dtype);
  Output const of_same = group(same, c.options());
  expect_valid(same, of_same, "identical rows");
  EXPECT_TRUE(std::ranges::is_sorted(of_same.permutation)) << "identical rows keep their order";
  EXPECT_TRUE(std::ranges::all_of(of_same.centroids, [](float x) { return x == 3.0f; }));

  for (float const odd : {kNan, std::numeric_limits<float>::infinity()}) {
    Values broken = values;
    broken.at(0, 500, 0, 7) = odd;
    broken.at(0, 8, 0, 0) = odd;
    Input const input = make_input(broken, c.dtype);
    expect_valid(input, group(input, c.options()), "non-finite rows");
    expect_same_bits(group(input, c.options()), group(input, c.options(), nullptr, 0x11), "non-finite rows");
  }
}

TEST(GpuGrouping, LargeMeanCostsNoPrecision) {
  Case const c{{1, 4096, 1, 128}, DType::f32, GroupOrder::chain_sorted, 32};
  Values values = values_of(c);
  Input const plain = make_input(values, c.dtype);
  double const energy = energies(plain, group(plain, c.options()).permutation, c.options())[0];
  for (float& x : values.data) x += 1000.0f;
  Input const shifted = make_input(values, c.dtype);
  EXPECT_NEAR(energies(shifted, group(shifted, c.options()).permutation, c.options())[0], energy, 0.01);
}

TEST(GpuGrouping, CanBeCaptured) {
  Case const c{{1, 3000, 2, 128}};
  Input const input = make_input(values_of(c), c.dtype);
  OnDevice problem(input, c.options(), 0x77);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  problem.launch(false, stream);
  cudaGraph_t graph;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  expect_same_bits(problem.download(stream), group(input, c.options()), "captured");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST(GpuGrouping, RefusesWhatItDoesNotServe) {
  auto const expect_unsupported = [](test::Shape shape, Options const& options) {
    Input const input = make_input(test::normal_values(shape, 1), DType::bf16);
    grouping::cuda::DeviceValues const values{input.v, false, input.sequences, nullptr};
    try {
      grouping::cuda::group_values(values, options, false, nullptr, nullptr, nullptr, nullptr);
      FAIL() << "no error was thrown";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    }
  };
  expect_unsupported({1, 10, 1, 129}, grouping_options(GroupOrder::chain_sorted));
  expect_unsupported({1, 10, 1, 128}, grouping_options(GroupOrder::chain_sorted, 257));
  Options odd_block = grouping_options(GroupOrder::chain_sorted);
  odd_block.v_block = 96;
  expect_unsupported({1, 10, 1, 128}, odd_block);
}

/// Judges one head's permutation by the CPU's best order with as many clusters, and by 64 clusters in label order.
void expect_energy(Input const& input, Options const& options, Output const& output, std::string const& what) {
  constexpr double kOfBest = 0.97;
  std::vector<double> const device = energies(input, output.permutation, options);
  std::vector<double> const best = energies(input, group_values(input.v, options, input.seqused()).permutation, options);
  std::vector<double> const label =
      energies(input, group_values(input.v, grouping_options(GroupOrder::label, 64), input.seqused()).permutation, options);
  for (std::size_t head = 0; head < device.size(); ++head) {
    fmt::print("{} head {}: energy {:.4f}, {:.4f} of the CPU's best {:.4f}; 64 clusters in label order {:.4f}\n", what, head, device[head],
               device[head] / best[head], best[head], label[head]);
    EXPECT_GE(device[head], kOfBest * best[head]) << what << ", head " << head;
    EXPECT_GE(device[head], label[head]) << what << ", head " << head;
  }
}

TEST(GpuGrouping, EnergyOfStructuredValues) {
  for (std::int64_t const frames : {8, 32, 64}) {
    Input const input = make_input(test::video_values(frames, 2, 3, 128), DType::bf16);
    Options const options = grouping_options(GroupOrder::chain_sorted);
    Output const cold = group(input, options);
    expect_energy(input, options, cold, fmt::format("{} frames", frames));
    expect_energy(input, options, group(input, options, &cold), fmt::format("{} frames, warm", frames));
  }
}

/// Small integers whose mean is 0, so that no distance between rows is rounded; several are equal.
Values integer_values(std::int64_t rows) {
  Values values = test::normal_values({1, rows, 2, 12}, 17, 2.5f);
  for (std::int64_t s = 0; s < rows / 2; ++s) {
    for (std::int64_t i = 0; i < values.shape.heads * values.shape.head_dim; ++i) {
      values.at(0, s, 0, i) = std::round(values.at(0, s, 0, i));
      values.at(0, rows - 1 - s, 0, i) = -values.at(0, s, 0, i);
    }
  }
  return values;
}

/// Every row is a cluster of its own; a power of two of them, whose mean the CPU does not round either.
TEST(GpuGrouping, TheChainIsTheCpus) {
  for (std::int32_t const rows : {2, 4, 8, 16, 32, 64, 128, 256}) {
    Input const input = make_input(integer_values(rows), DType::bf16);
    Options const options = grouping_options(GroupOrder::chain, rows);
    Output const cold = group(input, options);
    GroupingState expected = group_values(input.v, options);
    EXPECT_EQ(cold.permutation, expected.permutation) << rows << " clusters";
    EXPECT_EQ(cold.centroids, expected.centroids) << rows << " clusters";

    // From here on the centroids do not come as a chain.
    GroupingState const stored = group_values(input.v, grouping_options(GroupOrder::label, rows));
    Output const unchained{rows, stored.centroids, {}};
    Output const warm = group(input, options, &unchained);
    expected = group_values(input.v, options, {}, &stored);
    EXPECT_EQ(warm.permutation, expected.permutation) << rows << " clusters, warm";
    EXPECT_EQ(warm.centroids, expected.centroids) << rows << " clusters, warm";
  }
}

TEST(GpuGrouping, OrdersAscendInEnergy) {
  Input const input = make_input(test::video_values(32, 1, 9, 128), DType::bf16);
  double before = -1.0;
  for (GroupOrder const order : {GroupOrder::sequence, GroupOrder::label, GroupOrder::chain, GroupOrder::chain_sorted}) {
    Options const options = grouping_options(order, order == GroupOrder::sequence ? 0 : 48);
    double const energy = energies(input, group(input, options).permutation, options)[0];
    EXPECT_GT(energy, before) << static_cast<int>(order);
    before = energy;
  }
}

/// A tensor of a safetensors file, BF16.
struct Tensor {
  std::string name;
  Input input;
};

std::vector<Tensor> read_values(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string text(header_bytes, ' ');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  nlohmann::json const header = nlohmann::json::parse(text);
  std::vector<Tensor> tensors;
  for (auto const& [name, entry] : header.items()) {
    if (name[0] != 'v' || entry.at("dtype") != "BF16") continue;
    auto const shape = entry.at("shape").get<std::vector<std::int64_t>>();
    auto const range = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    Tensor tensor{path.stem().string() + " " + name, {}};
    tensor.input.bytes.resize(range[1] - range[0]);
    file.seekg(static_cast<std::streamoff>(sizeof(header_bytes) + header_bytes + range[0]));
    file.read(reinterpret_cast<char*>(tensor.input.bytes.data()), static_cast<std::streamsize>(tensor.input.bytes.size()));
    tensor.input.v = nhd_view(nullptr, DType::bf16, shape[0], shape[1], shape[2], shape[3]);
    tensor.input.sequences = equal_sequences(shape[0], shape[1], {});
    tensors.push_back(std::move(tensor));
  }
  for (Tensor& tensor : tensors) tensor.input.v.data = tensor.input.bytes.data();
  return tensors;
}

/// Tensors of one file that are alike and in ascending order are denoising steps: each starts from the centroids of the one before.
TEST(GpuGrouping, EnergyOfCaptures) {
  char const* const named = std::getenv("VCATTN_CAPTURES");
  std::filesystem::path const folder = named != nullptr ? std::filesystem::path(named) : std::filesystem::path(VCATTN_SOURCE_DIR) / "data";
  int files = 0;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    Output previous;
    for (Tensor const& tensor : read_values(entry.path())) {
      for (std::int32_t const v_block : {128, 64}) {
        Options options = grouping_options(GroupOrder::chain_sorted);
        options.v_block = v_block;
        expect_energy(tensor.input, options, group(tensor.input, options), fmt::format("{} v_block {}", tensor.name, v_block));
      }
      Options const options = grouping_options(GroupOrder::chain_sorted);
      Output next = previous.clusters > 0 ? group(tensor.input, options, &previous) : group(tensor.input, options);
      expect_energy(tensor.input, options, next, tensor.name + " after the step before");
      previous = std::move(next);
    }
  }
  EXPECT_GT(files, 0) << "no captures in " << folder;
}

}  // namespace
}  // namespace vcattn::cuda_test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::string const reason = vcattn::device::cuda::unavailable_reason(); !reason.empty()) {
    fmt::print(stderr, "vcattn_gpu_grouping_test needs a CUDA device: {}\n", reason);
    return 2;
  }
  vcattn::cuda_test::read_sample_step(argc, argv);
  vcattn::grouping::cuda::load_kernels();
  return RUN_ALL_TESTS();
}
