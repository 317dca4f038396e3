#include "cli/tensor_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <numeric>

#include "cli/temporary_folder.hpp"
#include "io/elements.hpp"
#include "io/safetensors.hpp"
#include "synth/random.hpp"

namespace vcattn::test {

FloatTensor random_tensor(std::string const& name, Shape const& shape, std::uint64_t seed) {
  cli::RandomStream const random(seed, 0);
  auto const elements = static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  FloatTensor tensor{name, shape, std::vector<float>(elements)};
  for (std::size_t i = 0; i < elements; ++i) tensor.values[i] = random.normal(i);
  return tensor;
}

std::vector<FloatTensor> small_problem() {
  return {random_tensor("q", {1, 40, 2, 64}, 1), random_tensor("k", {1, 72, 2, 64}, 2), random_tensor("v", {1, 72, 2, 64}, 3)};
}

void write_tensors(std::string const& path, std::vector<FloatTensor> const& tensors) {
  std::vector<cli::TensorSpec> specs;
  for (FloatTensor const& tensor : tensors) specs.push_back({tensor.name, "F32", tensor.shape});
  cli::SafetensorsWriter writer(path, specs, {});
  for (FloatTensor const& tensor : tensors) writer.append(std::as_bytes(std::span(tensor.values)));
  writer.commit();
}

FloatTensor read_tensor(std::string const& path, std::string const& name) {
  cli::SafetensorsReader reader(path);
  cli::TensorEntry const& entry = reader.entry(name);
  DType const dtype = entry.dtype == "F32" ? DType::f32 : entry.dtype == "F16" ? DType::f16 : DType::bf16;
  auto const bytes = reader.read(entry);
  FloatTensor tensor{name, entry.shape, std::vector<float>(bytes.size() / static_cast<std::size_t>(dtype_bytes(dtype)))};
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = cli::load_element(bytes.data(), dtype, static_cast<std::int64_t>(i));
  }
  return tensor;
}

void write_npy(std::string const& path, FloatTensor const& tensor) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}\n", fmt::join(tensor.shape, ", "));
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<char const*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  write_file(path, bytes);
}

FloatTensor swapped_axes(FloatTensor const& tensor) {
  Shape const& shape = tensor.shape;
  FloatTensor result{tensor.name, {shape[0], shape[2], shape[1], shape[3]}, std::vector<float>(tensor.values.size())};
  std::size_t index = 0;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t i = 0; i < shape[1]; ++i) {
      for (std::int64_t j = 0; j < shape[2]; ++j) {
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          result.values[static_cast<std::size_t>(((b * shape[2] + j) * shape[1] + i) * shape[3] + d)] = tensor.values[index++];
        }
      }
    }
  }
  return result;
}

void write_permutation(std::string const& path, Shape const& shape, std::vector<std::int32_t> const& values) {
  std::vector<cli::TensorSpec> const specs{{"perm", "I32", shape}};
  cli::SafetensorsWriter writer(path, specs, {});
  writer.append(std::as_bytes(std::span(values)));
  writer.commit();
}

}  // namespace vcattn::test
