// Preparation on a CUDA device writes the bytes that the CPU writes, section by section, over odd sizes, dtypes, strides and recipes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "cuda/sample.hpp"
#include "formats/prepared_layout.hpp"
#include "prepare/cuda/prepare.hpp"
#include "vcattn/attention.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn {
namespace {

using formats::Section;

struct Sizes {
  std::int64_t batch = 1, seqlen_q = 1, seqlen_kv = 1, num_heads = 1, num_heads_kv = 1, head_dim = 64;
};

enum class Memory { nhd, hnd, slice, scattered };

struct Case {
  std::string recipe;  // "vc8", "vc8 rounding=nearest,hadamard=off"
  Sizes sizes;
  std::array<DType, 3> dtypes = {DType::bf16, DType::bf16, DType::bf16};
  std::array<Memory, 3> memory = {Memory::nhd, Memory::nhd, Memory::nhd};
  std::vector<std::int32_t> seqused_k = {}, cu_seqlens_q = {}, cu_seqlens_k = {};
  std::optional<RopeStyle> rope = {};
  std::int64_t rotary_dim = 0;  // the last channels; 0: all but six
  std::optional<double> softmax_scale = {};
  float padding = 0.0f;  // what rows beyond seqused_k hold
  float magnitude = 1.0f;
  std::string nonfinite = {};  // any of "qkv": one row in three heads holds NaN or infinity
  bool integers = false;       // small ones, times a power of two that varies from row to row and every 16 channels: ties, small scales

  std::string name() const {
    return fmt::format(
        "{} B{} Sq{} Sk{} H{}/{} D{} dtypes {}{}{} memory {}{}{} seqused {} varlen {} rope {} of {} padding {} magnitude {} bad {} "
        "integers {}",
        recipe, sizes.batch, sizes.seqlen_q, sizes.seqlen_kv, sizes.num_heads, sizes.num_heads_kv, sizes.head_dim,
        static_cast<int>(dtypes[0]), static_cast<int>(dtypes[1]), static_cast<int>(dtypes[2]), static_cast<int>(memory[0]),
        static_cast<int>(memory[1]), static_cast<int>(memory[2]), seqused_k.size(), cu_seqlens_k.size(),
        rope ? static_cast<int>(*rope) : -1, rotary_dim, padding, magnitude, nonfinite, integers);
  }
};

Options options_of(std::string const& text) {
  auto const space = text.find(' ');
  Options options = recipe_options(parse_recipe(text.substr(0, space)));
  if (space != std::string::npos) set_options(options, text.substr(space + 1));
  return options;
}

/// The size with the next head_dim that NVFP4 takes where the recipe has that.
Sizes sizes_for(std::string const& recipe, Sizes sizes) {
  if (options_of(recipe).qk == QkFormat::nvfp4) sizes.head_dim = formats::ceil_div(sizes.head_dim, 16) * 16;
  return sizes;
}

/// A tensor in memory of some kind, bytes between its elements included.
struct OwnedTensor {
  std::vector<std::byte> bytes;
  TensorView view;  // of `bytes`
  std::size_t offset = 0;

  TensorView at(void const* base) const {
    TensorView moved = view;
    moved.data = static_cast<std::byte const*>(base) + offset;
    return moved;
  }

  void set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, float x) {
    std::int64_t const index = b * view.stride[0] + s * view.stride[1] + h * view.stride[2] + d * view.stride[3];
    std::byte* const element = bytes.data() + offset + index * dtype_bytes(view.dtype);
    std::uint16_t const half = view.dtype == DType::bf16 ? core::bf16_encode(x) : core::fp16_encode(x);
    std::memcpy(element, view.dtype == DType::f32 ? static_cast<void const*>(&x) : &half,
                static_cast<std::size_t>(dtype_bytes(view.dtype)));
  }
};

OwnedTensor make_tensor(DType dtype, Memory memory, std::array<std::int64_t, 4> const& shape) {
  auto const [b, s, h, d] = shape;
  OwnedTensor t;
  std::int64_t first = 0;
  std::array<std::int64_t, 4> stride{};
  switch (memory) {
    case Memory::nhd:
      stride = {s * h * d, h * d, d, 1};
      break;
    case Memory::hnd:
      stride = {h * s * d, d, s * d, 1};
      break;
    case Memory::slice:  // of a fused projection
      first = h * d;
      stride = {s * 3 * h * d, 3 * h * d, d, 1};
      break;
    case Memory::scattered:  // no load of 16 bytes is possible
      first = 3;
      stride = {d * 2, b * d * 2, s * b * d * 2, 2};
      break;
  }
  std::int64_t reach = first + 1;
  for (std::size_t i = 0; i < 4; ++i) reach += std::max<std::int64_t>(shape[i] - 1, 0) * stride[i];
  t.offset = static_cast<std::size_t>(first * dtype_bytes(dtype));
  t.bytes.assign(static_cast<std::size_t>(reach * dtype_bytes(dtype)) + 64, std::byte{0x7F});
  t.view = {nullptr, dtype, shape, stride};
  t.view.data = t.bytes.data() + t.offset;
  return t;
}

/// Everything that a case borrows, on the host.
struct Inputs {
  std::array<OwnedTensor, 3> tensors;
  std::vector<float> cosines, sines;
  std::vector<std::int32_t> permutation;

  Problem problem(Case const& c, std::array<void const*, 3> const& bases, float const* cos, float const* sin) const {
    Problem p;
    p.q = tensors[0].at(bases[0]);
    p.k = tensors[1].at(bases[1]);
    p.v = tensors[2].at(bases[2]);
    p.seqused_k = c.seqused_k;
    p.cu_seqlens_q = c.cu_seqlens_q;
    p.cu_seqlens_k = c.cu_seqlens_k;
    p.permutation = permutation;
    p.softmax_scale = c.softmax_scale;
    if (c.rope) {
      std::int64_t const rows = std::max(c.sizes.seqlen_q, c.sizes.seqlen_kv);
      std::int64_t const rotary_dim = static_cast<std::int64_t>(cosines.size()) / rows * 2;
      p.rope = Rope{cos, sin, rows, rotary_dim, c.sizes.head_dim - rotary_dim, *c.rope};
    }
    return p;
  }
  Problem on_host(Case const& c) const {
    return problem(c, {tensors[0].bytes.data(), tensors[1].bytes.data(), tensors[2].bytes.data()}, cosines.data(), sines.data());
  }
};

Inputs make_inputs(Case const& c, unsigned seed) {
  Inputs in;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  auto const& z = c.sizes;
  for (std::size_t i = 0; i < 3; ++i) {
    std::int64_t const rows = i == 0 ? z.seqlen_q : z.seqlen_kv;
    std::int64_t const heads = i == 0 ? z.num_heads : z.num_heads_kv;
    in.tensors[i] = make_tensor(c.dtypes[i], c.memory[i], {z.batch, rows, heads, z.head_dim});
    for (std::int64_t b = 0; b < z.batch; ++b) {
      for (std::int64_t s = 0; s < rows; ++s) {
        bool const padding = i != 0 && !c.seqused_k.empty() && c.cu_seqlens_k.empty() && s >= c.seqused_k[static_cast<std::size_t>(b)];
        for (std::int64_t h = 0; h < heads; ++h) {
          bool const bad = c.nonfinite.find("qkv"[i]) != std::string::npos && h % 2 == 0 && s % 37 == 5;
          for (std::int64_t d = 0; d < z.head_dim; ++d) {
            float const offset = 0.3f * static_cast<float>(d % 7) - (s < rows / 2 ? 0.6f : -0.6f);
            float x = (normal(random) + offset) * c.magnitude;
            if (c.integers) x = std::ldexp(std::round(4.0f * x), -static_cast<int>((s + d / 16) % 16));
            bool const bad_here = bad && d == (s * 11 + h) % z.head_dim;
            float const badness = s % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
            in.tensors[i].set(b, s, h, d, padding ? c.padding : bad_here ? badness : x);
          }
        }
      }
    }
  }
  if (c.rope) {
    std::int64_t const rows = std::max(z.seqlen_q, z.seqlen_kv);
    std::int64_t const half = c.rotary_dim != 0 ? c.rotary_dim / 2 : z.head_dim / 2 - 3;
    for (std::int64_t i = 0; i < rows * half; ++i) {
      in.cosines.push_back(std::cos(0.01f * static_cast<float>(i)));
      in.sines.push_back(std::sin(0.01f * static_cast<float>(i)));
    }
  }
  // Valid keys in any order, padding behind them.
  auto const plan = formats::plan_layout(in.on_host(c), options_of(c.recipe));
  for (auto const& s : plan.sequences) {
    for (std::int64_t h = 0; h < z.num_heads_kv; ++h) {
      auto const first = static_cast<std::ptrdiff_t>(in.permutation.size());
      for (std::int64_t i = 0; i < s.rows_kv; ++i) in.permutation.push_back(static_cast<std::int32_t>(i));
      std::shuffle(in.permutation.begin() + first, in.permutation.begin() + first + s.seqlen_kv, random);
    }
  }
  return in;
}

std::array<std::pair<char const*, Section>, 19> sections_of(formats::PreparedLayout const& l) {
  return {{{"sequences", l.sequences},
           {"permutation", l.permutation},
           {"q_codes", l.q_codes},
           {"q_scale_factors", l.q_scale_factors},
           {"q_descale", l.q_descale},
           {"q_mean", l.q_mean},
           {"k_codes", l.k_codes},
           {"k_scale_factors", l.k_scale_factors},
           {"k_descale", l.k_descale},
           {"k_high", l.k_high},
           {"score_multiplier", l.score_multiplier},
           {"score_bound", l.score_bound},
           {"score_variant", l.score_variant},
           {"v_codes", l.v_codes},
           {"v_scale_factors", l.v_scale_factors},
           {"v_descale", l.v_descale},
           {"v_mean", l.v_mean},
           {"v_global_mean", l.v_global_mean},
           {"lse_correction", l.lse_correction}}};
}

/// Bytes of each section, in the order of sections_of().
using Sections = std::vector<std::vector<std::byte>>;

Sections sections_in(formats::PreparedLayout const& l, std::byte const* slab) {
  Sections result;
  for (auto const& [name, s] : sections_of(l)) result.emplace_back(slab + s.offset, slab + s.offset + s.bytes);
  return result;
}

CudaBuffer uploaded(void const* data, std::size_t bytes) {
  CudaBuffer buffer(std::max<std::size_t>(bytes, 16));
  if (bytes != 0) buffer.upload(data, bytes);
  return buffer;
}

/// Prepares on the device, twice; fails where the runs differ or an input has changed.
Sections prepare_on_device(Case const& c, Inputs const& in) {
  std::vector<CudaBuffer> inputs;
  for (auto const& t : in.tensors) inputs.push_back(uploaded(t.bytes.data(), t.bytes.size()));
  CudaBuffer const cosines = uploaded(in.cosines.data(), in.cosines.size() * sizeof(float));
  CudaBuffer const sines = uploaded(in.sines.data(), in.sines.size() * sizeof(float));
  Problem const problem = in.problem(c, {inputs[0].data(), inputs[1].data(), inputs[2].data()}, static_cast<float const*>(cosines.data()),
                                     static_cast<float const*>(sines.data()));
  Options const options = options_of(c.recipe);
  auto const plan = formats::plan_layout(problem, options);
  auto const& l = plan.layout;

  std::vector<Sections> runs;
  for (unsigned char const before : std::array<unsigned char, 2>{0xFF, 0x5A}) {  // what slab and workspace hold must not matter
    std::vector<std::byte> slab(l.total_bytes, std::byte{before});
    std::memcpy(slab.data() + l.sequences.offset, plan.sequences.data(), l.sequences.bytes);
    if (l.permutation.bytes != 0) std::memcpy(slab.data() + l.permutation.offset, in.permutation.data(), l.permutation.bytes);
    CudaBuffer device_slab = uploaded(slab.data(), slab.size());
    CudaBuffer workspace(preparation::cuda::workspace_bytes(l, options));
    workspace.fill(before);
    preparation::cuda::prepare(problem, options, formats::SlabView<std::byte>(l, static_cast<std::byte*>(device_slab.data())),
                               static_cast<std::byte*>(workspace.data()), nullptr);
    device_slab.download(slab.data(), slab.size());
    runs.push_back(sections_in(l, slab.data()));
  }
  EXPECT_TRUE(runs[0] == runs[1]) << "two runs differ: " << c.name();
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<std::byte> after(in.tensors[i].bytes.size());
    inputs[i].download(after.data(), after.size());
    EXPECT_TRUE(after == in.tensors[i].bytes) << "input "
                                              << "qkv"[i] << " has changed: " << c.name();
  }
  return runs[0];
}

void expect_equal(Sections const& ours, Sections const& expected, formats::PreparedLayout const& l, std::string const& where) {
  auto const sections = sections_of(l);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    std::size_t different = 0;
    std::size_t first = 0;
    for (std::size_t b = expected[i].size(); b-- > 0;) {
      if (ours[i][b] == expected[i][b]) continue;
      ++different;
      first = b;
    }
    EXPECT_EQ(different, 0u) << sections[i].first << ": bytes that differ of " << expected[i].size() << ", the first at " << first << ": "
                             << (different != 0 ? static_cast<int>(ours[i][first]) : 0) << " instead of "
                             << (different != 0 ? static_cast<int>(expected[i][first]) : 0) << "; " << where;
  }
}

std::uint32_t base_seed = 1;

void expect_same_bytes(Case const& c, unsigned seed) {
  Inputs const in = make_inputs(c, base_seed * 1000003u + seed);
  Problem const problem = in.on_host(c);
  Options const options = options_of(c.recipe);
  Prepared const prepared = prepare(problem, options);
  auto const& impl = prepared.impl();
  ASSERT_EQ(preparation::cuda::unsupported_reason(impl.layout, options), "") << c.name();
  expect_equal(prepare_on_device(c, in), sections_in(impl.layout, impl.slab), impl.layout, c.name());
}
void expect_same_bytes_as_cpu(Case const& c, unsigned seed) {
  if (cuda_test::in_sample()) expect_same_bytes(c, seed);
}

constexpr char const* kRecipes[] = {
    "vc8s",  "vsmooth8s", "vc8",           "vsmooth8",          "fp8",      "vc8 rounding=nearest",     "vc8s rounding=shaped",
    "nvfp4", "sage3",     "vc8s block=64", "vsmooth4 block=32", "vsmooth4", "vsmooth4 rounding=nearest"};

/// Few and small enough for every tool of compute-sanitizer.
TEST(GpuPrepare, EveryKernel) {
  unsigned seed = 50;
  for (char const* recipe :
       {"vc8s", "vc8", "vc8s rounding=shaped", "vc8s q_block=32,k_block=64", "fp8", "vsmooth4", "sage3", "vc8s block=32"}) {
    for (std::int64_t const head_dim : {64, 128}) {
      Case c{recipe, {1, 130, 257, 2, 1, head_dim}};
      expect_same_bytes_as_cpu(c, seed++);
      c.dtypes = {DType::f16, DType::bf16, DType::f32};
      c.rope = RopeStyle::interleaved;
      c.rotary_dim = 64;
      c.nonfinite = "kv";
      expect_same_bytes_as_cpu(c, seed++);
    }
  }
}

TEST(GpuPrepare, OddSizes) {
  std::vector<Sizes> const sizes = {{1, 1, 1, 1, 1, 64},     {1, 127, 129, 2, 1, 64}, {2, 130, 257, 4, 2, 40},
                                    {1, 33, 131, 6, 2, 128}, {2, 300, 517, 3, 3, 96}, {1, 0, 70, 1, 1, 64},
                                    {1, 70, 0, 2, 1, 128},   {1, 5, 4421, 2, 2, 72},  {1, 8500, 300, 1, 1, 64}};
  unsigned seed = 1;
  for (char const* recipe : kRecipes) {
    for (Sizes const& s : sizes) expect_same_bytes_as_cpu({recipe, sizes_for(recipe, s)}, seed++);
  }
}

TEST(GpuPrepare, Options) {
  unsigned seed = 100;
  for (char const* options : {"vc8 hadamard=off",
                              "vc8 k_mean=off",
                              "vc8 emc=off",
                              "vc8 v_mean=off",
                              "vc8 qk_scaling=head",
                              "vc8 qk_scaling=block",
                              "vc8-paper",
                              "vc8 qk_scaling=block,q_block=32",
                              "vc8 scores=f32",
                              "vc8 scores=f16",
                              "vc8 v_scaling=head",
                              "vc8s q_block=64",
                              "vc8s q_block=32",
                              "vc8s qk_scaling=head",
                              "vc8s k_mean=off,hadamard=off",
                              "vc8s k_block=64",
                              "sage2",
                              "vc8 rounding=shaped",
                              "vc8s rounding=shaped_k,k_block=64",
                              "vc8 rounding=shaped,qk_scaling=block,q_block=32",
                              "fp8 rounding=shaped",
                              "vc8 hadamard=off,rounding=shaped",
                              "fp8 v_scaling=channel",
                              "vc8 expcast=exp",
                              "nvfp4 k_mean=on,hadamard=on",
                              "sage3 hadamard=on",
                              "sage3 q_mean=off",
                              "sage3 k_mean=off",
                              "vsmooth4 emc=off",
                              "vsmooth4 v_scaling=channel",
                              "vsmooth4 v_mean=off",
                              "vsmooth4 block=64",
                              "vsmooth4 block=64,emc=off",
                              "vsmooth4 v=e4m3",
                              "vsmooth4 v=e4m3,block=64,emc=off",
                              "vc8 block=32",
                              "vc8 block=32,v_scaling=head",
                              "vc8s v=nvfp4",
                              "vc8s v=nvfp4,block=32",
                              "vsmooth4 rounding=shaped_k",
                              "nvfp4 rounding=shaped",
                              "sage3 rounding=nearest"}) {
    for (std::int64_t const head_dim : {48, 128}) expect_same_bytes_as_cpu({options, {1, 200, 300, 4, 2, head_dim}}, seed++);
  }
  Case scaled{"vc8", {1, 200, 300, 2, 1, 64}};
  for (double const tau : {0.0, 1e-3, 4.0, 1e4}) {
    scaled.softmax_scale = tau;
    expect_same_bytes_as_cpu(scaled, seed++);
  }
}

TEST(GpuPrepare, BlocksThatEndAnywhere) {
  unsigned seed = 150;
  for (char const* recipe : {"vc8s block=32", "vc8 block=64", "vsmooth4 block=32", "vsmooth4 block=64", "vsmooth4"}) {
    for (std::int64_t const seqlen_kv : {31, 32, 33, 64, 65, 96, 97, 127, 193, 225, 4128}) {
      expect_same_bytes_as_cpu({recipe, {1, 3, seqlen_kv, 1, 1, 64}}, seed++);
    }
  }
}

TEST(GpuPrepare, TiesAndSmallScaleFactors) {
  unsigned seed = 180;
  for (char const* recipe : {"nvfp4", "sage3", "vsmooth4 hadamard=off", "vsmooth4 hadamard=off,k_mean=off,q_mean=off,block=32"}) {
    for (DType const dtype : {DType::bf16, DType::f32}) {
      Case c{recipe, {1, 150, 261, 2, 1, 128}};
      c.dtypes = {dtype, dtype, dtype};
      c.integers = true;
      expect_same_bytes_as_cpu(c, seed++);
    }
  }
}

TEST(GpuPrepare, DtypesAndMemory) {
  unsigned seed = 200;
  std::vector<DType> const dtypes = {DType::f32, DType::f16, DType::bf16};
  std::vector<Memory> const memories = {Memory::nhd, Memory::hnd, Memory::slice, Memory::scattered};
  for (char const* recipe : {"vc8s", "vc8", "sage3", "vsmooth4 block=32", "vc8s block=64"}) {
    for (std::size_t t = 0; t < dtypes.size(); ++t) {
      for (std::size_t m = 0; m < memories.size(); ++m) {
        Case c{recipe, sizes_for(recipe, {2, 150, 261, 4, 2, m % 2 == 0 ? 128 : 56})};
        c.dtypes = {dtypes[t], dtypes[(t + m) % 3], dtypes[(t + 2 * m + 1) % 3]};
        c.memory = {memories[m], memories[(m + t) % 4], memories[(m + 3) % 4]};
        expect_same_bytes_as_cpu(c, seed++);
      }
    }
  }
}

TEST(GpuPrepare, Magnitudes) {
  unsigned seed = 300;
  for (char const* recipe : {"vc8s", "vc8", "fp8", "vc8s rounding=shaped", "nvfp4", "vsmooth4 block=64"}) {
    for (float const magnitude : {0.0f, 1e-35f, 1e-20f, 1e-3f, 300.0f, 1e15f}) {
      Case c{recipe, {1, 140, 270, 2, 1, 128}};
      c.dtypes = {DType::f32, DType::f32, DType::f32};
      c.magnitude = magnitude;
      expect_same_bytes_as_cpu(c, seed++);
    }
  }
  Case overflowing{"nvfp4 hadamard=on", {1, 140, 270, 2, 1, 128}};  // sums of the transform are beyond FP32
  overflowing.dtypes = {DType::f32, DType::f32, DType::f32};
  overflowing.magnitude = 3e37f;
  expect_same_bytes_as_cpu(overflowing, seed++);
}

TEST(GpuPrepare, Varlen) {
  unsigned seed = 400;
  for (char const* recipe : {"vc8s", "vc8", "fp8", "sage3", "vsmooth4", "vc8s block=32"}) {
    Case c{recipe, {1, 400, 530, 4, 2, 128}};
    c.cu_seqlens_q = {0, 0, 130, 131, 400};
    c.cu_seqlens_k = {0, 129, 129, 400, 530};
    expect_same_bytes_as_cpu(c, seed++);
    c.seqused_k = {129, 0, 131, 77};
    expect_same_bytes_as_cpu(c, seed++);
  }
}

TEST(GpuPrepare, Rope) {
  unsigned seed = 500;
  for (char const* recipe : {"vc8s", "vc8", "vsmooth4"}) {
    for (RopeStyle const style : {RopeStyle::interleaved, RopeStyle::rotate_half}) {
      for (DType const dtype : {DType::bf16, DType::f32}) {
        Case c{recipe, sizes_for(recipe, {1, 150, 261, 2, 1, dtype == DType::f32 ? 128 : 72})};
        c.dtypes = {dtype, dtype, dtype};
        c.memory[1] = dtype == DType::f32 ? Memory::scattered : Memory::slice;
        c.rope = style;
        expect_same_bytes_as_cpu(c, seed++);
      }
    }
  }
}

/// Runs of eight channels whose table entries can be read at once, and some that cannot.
TEST(GpuPrepare, RopeInRuns) {
  struct Rotation {
    RopeStyle style;
    std::int64_t head_dim, rotary_dim;
  };
  unsigned seed = 550;
  for (Rotation const& r :
       {Rotation{RopeStyle::interleaved, 128, 128}, Rotation{RopeStyle::interleaved, 128, 96}, Rotation{RopeStyle::interleaved, 72, 40},
        Rotation{RopeStyle::interleaved, 64, 8}, Rotation{RopeStyle::rotate_half, 128, 128}, Rotation{RopeStyle::rotate_half, 64, 64},
        Rotation{RopeStyle::rotate_half, 96, 96}, Rotation{RopeStyle::rotate_half, 128, 64}}) {
    for (char const* recipe : {"vc8s", "vc8", "vc8s k_mean=off,rounding=shaped"}) {
      Case c{recipe, {2, 150, 261, 4, 2, r.head_dim}};
      c.dtypes = {DType::bf16, seed % 2 == 0 ? DType::f32 : DType::f16, DType::bf16};
      c.memory[0] = seed % 3 == 0 ? Memory::slice : Memory::nhd;
      c.rope = r.style;
      c.rotary_dim = r.rotary_dim;
      c.nonfinite = seed % 4 == 0 ? "qk" : "";
      c.seqused_k = {261, 129};
      expect_same_bytes_as_cpu(c, seed++);
    }
  }
}

TEST(GpuPrepare, ValuesThatAreNotFinite) {
  unsigned seed = 600;
  for (char const* recipe : kRecipes) {
    for (char const* where : {"q", "k", "v", "qkv"}) {
      for (DType const dtype : {DType::bf16, DType::f16, DType::f32}) {
        Case c{recipe, {1, 150, 261, 4, 2, 128}};
        c.dtypes = {dtype, dtype, dtype};
        c.nonfinite = where;
        expect_same_bytes_as_cpu(c, seed++);
      }
    }
  }
}

TEST(GpuPrepare, PaddingIsNeverReadAsNumbers) {
  for (char const* recipe : kRecipes) {
    if (!cuda_test::in_sample()) continue;
    std::vector<Sections> results;
    std::optional<formats::PreparedLayout> layout;
    for (float const padding : {0.0f, 1e4f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Case c{recipe, {3, 70, 300, 2, 2, 64}};
      c.seqused_k = {131, 256, 0};
      c.padding = padding;
      Inputs const in = make_inputs(c, 700);
      layout = formats::plan_layout(in.on_host(c), options_of(c.recipe)).layout;
      results.push_back(prepare_on_device(c, in));
      if (results.size() == 1) expect_same_bytes(c, 700);
      expect_equal(results.back(), results.front(), *layout, c.name());
    }
  }
}

TEST(GpuPrepare, PublicCallServesWhatAttentionDoesNot) {
  unsigned seed = 800;
  for (char const* recipe : {"vsmooth4", "vc8s block=64"}) {
    Case const c{recipe, {1, 130, 300, 2, 1, 64}};
    Inputs const in = make_inputs(c, base_seed * 1000003u + seed++);
    Options const options = options_of(c.recipe);
    Prepared const expected = prepare(in.on_host(c), options);
    std::vector<CudaBuffer> tensors;
    for (auto const& t : in.tensors) tensors.push_back(uploaded(t.bytes.data(), t.bytes.size()));
    CudaBuffer const permutation = uploaded(in.permutation.data(), in.permutation.size() * sizeof(std::int32_t));
    Problem problem = in.problem(c, {tensors[0].data(), tensors[1].data(), tensors[2].data()}, nullptr, nullptr);
    problem.permutation = {static_cast<std::int32_t const*>(permutation.data()), in.permutation.size()};

    EXPECT_FALSE(supports_call(problem, options, Device::cuda).ok) << c.name();
    CudaBuffer const workspace(call_workspace_size_bytes(problem, options, Device::cuda));
    CudaBuffer const storage(prepared_size_bytes(problem, options));
    Prepared const prepared = prepare(problem, options, {static_cast<std::byte*>(storage.data()), storage.size()},
                                      {Device::cuda, nullptr, {static_cast<std::byte*>(workspace.data()), workspace.size()}});
    std::vector<std::byte> slab(storage.size());
    storage.download(slab.data(), slab.size());
    auto const& layout = prepared.impl().layout;
    expect_equal(sections_in(layout, slab.data()), sections_in(layout, expected.impl().slab), layout, c.name());
    EXPECT_THROW(attend(problem, options, {storage.data(), DType::f32, problem.q.shape, problem.q.stride}, {}, {Device::cuda, nullptr, {}}),
                 Error);
  }
}

TEST(GpuPrepare, RefusalsSayWhatToDo) {
  struct Refusal {
    char const* options;
    std::int64_t head_dim;
    char const* advice;
  };
  for (Refusal const& r :
       {Refusal{"vc8", 32, "head_dim"}, Refusal{"vc8", 256, "head_dim"}, Refusal{"exact", 64, "qk=e4m3"},
        Refusal{"vc8s v=bf16", 64, "v=nvfp4"}, Refusal{"vc8s q_mean=on", 64, "q_mean=off"}, Refusal{"sage3 qk=bf16", 64, "qk=e4m3"}}) {
    Problem p;
    p.q = nhd_view(nullptr, DType::bf16, 1, 3, 1, r.head_dim);
    p.k = p.v = nhd_view(nullptr, DType::bf16, 1, 5, 1, r.head_dim);
    Options const options = options_of(r.options);
    auto const reason = preparation::cuda::unsupported_reason(formats::plan_layout(p, options).layout, options);
    EXPECT_NE(reason.find(r.advice), std::string::npos) << r.options << ": " << reason;
  }
}

}  // namespace
}  // namespace vcattn

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::string const reason = vcattn::cuda_unavailable_reason(); !reason.empty()) {
    fmt::print(stderr, "vcattn_gpu_prepare_test needs a CUDA device: {}\n", reason);
    return 2;
  }
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--seed") vcattn::base_seed = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
  }
  vcattn::cuda_test::read_sample_step(argc, argv);
  fmt::print("{}; inputs of --seed {}\n", vcattn::cuda_device_description(), vcattn::base_seed);
  return RUN_ALL_TESTS();
}
