#include "inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "attention_run.hpp"
#include "io/elements.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "parse.hpp"

namespace vcattn::cli {
namespace {

/// A shape with a zero may claim any other extent: those whose strides would overflow are refused.
void require_addressable(std::string_view file, std::vector<std::int64_t> const& shape) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  std::int64_t elements = 1;
  for (std::int64_t const extent : shape) {
    if (extent > kMost / elements) {
      throw Error(ErrorCode::io, fmt::format("'{}': extents of at most 2^48 elements in all required, got [{}]; write it again", file,
                                             fmt::join(shape, ", ")));
    }
    elements *= std::max<std::int64_t>(extent, 1);
  }
}

HostTensor read_float_tensor(SafetensorsReader& reader, std::string_view name) {
  TensorEntry const& entry = reader.entry(name);
  HostTensor tensor;
  tensor.shape = entry.shape;
  if (entry.dtype == "BF16") {
    tensor.dtype = DType::bf16;
  } else if (entry.dtype == "F16") {
    tensor.dtype = DType::f16;
  } else if (entry.dtype != "F32") {
    throw Error(ErrorCode::io, fmt::format("'{}': tensor '{}' must be BF16, F16 or F32, got {}; convert it", reader.name(), shortened(name),
                                           shortened(entry.dtype)));
  }
  if (entry.shape.size() != 4) {
    throw Error(ErrorCode::io, fmt::format("'{}': tensor '{}' must have 4 dimensions [B, S, H, D], got [{}]; reshape it", reader.name(),
                                           shortened(name), shortened(fmt::format("{}", fmt::join(entry.shape, ", ")))));
  }
  require_addressable(reader.name(), entry.shape);
  tensor.data = reader.read(entry);
  return tensor;
}

/// Names the form of the input that was chosen; refuses none and both.
bool reads_safetensors(InputArguments const& arguments) {
  bool const any_npy = !arguments.q_file.empty() || !arguments.k_file.empty() || !arguments.v_file.empty();
  bool const all_npy = !arguments.q_file.empty() && !arguments.k_file.empty() && !arguments.v_file.empty();
  bool const file = !arguments.file.empty();
  if (file == any_npy || any_npy != all_npy) {
    throw Error(ErrorCode::invalid_argument, "either IN.safetensors or all of --q, --k and --v required; see --help");
  }
  return file;
}

}  // namespace

TensorView HostTensor::view(Layout layout) const {
  auto const make = layout == Layout::nhd ? nhd_view : hnd_view;
  std::size_t const seqlen = layout == Layout::nhd ? 1 : 2;
  return make(data.data(), dtype, shape[0], shape[seqlen], shape[3 - seqlen], shape[3]);
}

LoadedProblem::LoadedProblem(InputArguments const& arguments) : layout_(parse_layout(arguments.layout)), causal_(arguments.causal) {
  if (reads_safetensors(arguments)) {
    SafetensorsReader reader(arguments.file);
    q_ = read_float_tensor(reader, "q");
    k_ = read_float_tensor(reader, "k");
    v_ = read_float_tensor(reader, "v");
    name_ = arguments.file;
  } else {
    q_ = load_npy_tensor(arguments.q_file, layout_);
    k_ = load_npy_tensor(arguments.k_file, layout_);
    v_ = load_npy_tensor(arguments.v_file, layout_);
    name_ = arguments.q_file;
  }
  TensorView const v = v_.view(layout_);
  seqused_k_ = parse_seqused(arguments.seqused_k, v);
  if (!arguments.permutation_file.empty()) permutation_ = load_permutation(arguments.permutation_file, v, seqused_k_);
}

Problem LoadedProblem::problem() const {
  Problem problem;
  problem.q = q_.view(layout_);
  problem.k = k_.view(layout_);
  problem.v = v_.view(layout_);
  problem.causal = causal_;
  problem.seqused_k = seqused_k_;
  problem.permutation = permutation_;
  return problem;
}

HostTensor load_safetensors_tensor(std::filesystem::path const& path, std::string_view name) {
  SafetensorsReader reader(path);
  return read_float_tensor(reader, name);
}

HostTensor load_npy_tensor(std::filesystem::path const& path, Layout layout) {
  NpyArray array = read_npy(path);
  if (array.shape.size() < 2 || array.shape.size() > 4) {
    throw Error(ErrorCode::io, fmt::format("'{}': 2 to 4 dimensions required ([S, D], [S, H, D] or [B, S, H, D]), got ({}); reshape it",
                                           shortened(path.string()), shortened(fmt::format("{}", fmt::join(array.shape, ", ")))));
  }
  require_addressable(shortened(path.string()), array.shape);
  if (array.shape.size() == 2) array.shape.insert(array.shape.begin() + (layout == Layout::nhd ? 1 : 0), 1);
  if (array.shape.size() == 3) array.shape.insert(array.shape.begin(), 1);
  return {array.dtype, std::move(array.shape), std::move(array.data)};
}

std::vector<std::int32_t> load_permutation(std::filesystem::path const& path, TensorView const& v, std::span<std::int32_t const> seqused) {
  SafetensorsReader reader(path);
  TensorEntry const& entry = reader.entry("perm");
  std::vector<std::int64_t> const required{v.batch(), v.num_heads(), v.seqlen()};
  if (entry.dtype != "I32" || entry.shape != required) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("'{}': perm must be I32 [{}] ([B, Hkv, Sk]) for this input, got {} [{}]; make it with 'vcattn group'", reader.name(),
                    fmt::join(required, ", "), shortened(entry.dtype), shortened(fmt::format("{}", fmt::join(entry.shape, ", ")))));
  }
  auto const bytes = reader.read(entry);
  std::vector<std::int32_t> permutation(bytes.size() / sizeof(std::int32_t));
  if (!bytes.empty()) std::memcpy(permutation.data(), bytes.data(), bytes.size());

  auto const keys = static_cast<std::size_t>(v.seqlen());
  for (std::size_t begin = 0; begin < permutation.size(); begin += keys) {
    std::vector<bool> seen(keys, false);
    std::size_t const batch = begin / (keys * static_cast<std::size_t>(v.num_heads()));
    std::size_t const used = seqused.empty() ? keys : static_cast<std::size_t>(seqused[batch]);
    for (std::size_t i = 0; i < keys; ++i) {
      std::int32_t const key = permutation[begin + i];
      if (key < 0 || static_cast<std::size_t>(key) >= keys || seen[static_cast<std::size_t>(key)]) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("'{}': row {} of perm must hold each of 0..{} once, entry {} is {}; make it with 'vcattn group'",
                                reader.name(), begin / keys, keys - 1, i, key));
      }
      seen[static_cast<std::size_t>(key)] = true;
      if ((i < used) != (static_cast<std::size_t>(key) < used)) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("'{}': row {} of perm must hold the {} valid keys of --seqused-k first, entry {} is {}; make it with the "
                                "same --seqused-k",
                                reader.name(), begin / keys, used, i, key));
      }
    }
  }
  return permutation;
}

std::vector<std::int32_t> parse_seqused(std::string_view text, TensorView const& v) {
  if (text.empty()) return {};
  std::int64_t const most = std::min<std::int64_t>(v.seqlen(), std::numeric_limits<std::int32_t>::max());
  auto const values = parse_integers("--seqused-k (one per batch entry)", text, static_cast<std::size_t>(v.batch()), 0, most);
  return {values.begin(), values.end()};
}

void require_finite(std::string_view name, TensorView const& tensor, std::span<std::int32_t const> seqused) {
  if (tensor.num_heads() == 0 || tensor.head_dim() == 0) return;
  for (std::int64_t b = 0; b < tensor.batch(); ++b) {
    std::int64_t const rows = seqused.empty() ? tensor.seqlen() : seqused[static_cast<std::size_t>(b)];
    for (std::int64_t s = 0; s < rows; ++s) {
      for (std::int64_t h = 0; h < tensor.num_heads(); ++h) {
        for (std::int64_t d = 0; d < tensor.head_dim(); ++d) {
          std::int64_t const index = b * tensor.stride[0] + s * tensor.stride[1] + h * tensor.stride[2] + d * tensor.stride[3];
          float const value = load_element(tensor.data, tensor.dtype, index);
          if (!std::isfinite(value)) {
            throw Error(
                ErrorCode::nonfinite,
                fmt::format("{} must be finite, got {} at [{}, {}, {}, {}]; clean it, or pass --no-check-finite", name, value, b, s, h, d));
          }
        }
      }
    }
  }
}

void require_finite_problem(Problem const& problem) {
  require_finite("q", problem.q);
  require_finite("k", problem.k, problem.seqused_k);
  require_finite("v", problem.v, problem.seqused_k);
}

void require_support(Problem const& problem, Options const& options, Devices devices) {
  Support const support = run_support(problem, options, devices);
  if (!support.ok) throw Error(ErrorCode::unsupported, support.reason);
}

std::string safetensors_dtype(DType dtype) { return dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16"; }

}  // namespace vcattn::cli
