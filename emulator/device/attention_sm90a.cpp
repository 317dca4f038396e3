// The kernel instances of src/attention/sm90a/, launched in the emulator from their PTX.

#include <cstring>
#include <filesystem>
#include <map>

#include "attention/sm90a/instances.hpp"
#include "emulator/device/device.hpp"
#include "emulator/fault.hpp"
#include "emulator/loader.hpp"

namespace vcattn::attention_sm90a {

namespace {

using emulator::device;
using emulator::LaunchConfig;
using emulator::Module;

constexpr char const* kScoreNames[] = {"f16", "f32", "s32"};
constexpr char const* kProbabilityNames[] = {"lines", "exp"};

/// The PTX of an instance, in the first folder that has it.
template <class C>
std::string module_path() {
  std::string const name = std::string("/attention_sm90a_") + kScoreNames[static_cast<int>(C::kScores)] + "_" +
                           kProbabilityNames[static_cast<int>(C::kProbabilities)] + "_" + std::to_string(C::kHeadDim) + ".ptx";
  for (std::string const& folder : device().ptx_folders) {
    if (std::filesystem::exists(folder + name)) return folder + name;
  }
  throw emulator::LoadError("no folder of emulator::device() has " + name.substr(1) + "; build vcattn_ptx");
}

template <class C>
Module const& module() {
  static std::map<std::string, Module> modules;
  std::string const path = module_path<C>();
  auto const found = modules.find(path);
  return found != modules.end() ? found->second : modules.emplace(path, emulator::load_module_file(path)).first->second;
}

/// What emulator/kernels.cu says of shared memory: the first range is all of it.
std::vector<emulator::NamedRange> shared_ranges(Module const& m) {
  struct Range {
    std::uint32_t offset, bytes;
    char name[24];
  };
  std::vector<std::uint8_t> const& bytes = m.globals.at("vcattn_shared_ranges").bytes;
  std::vector<emulator::NamedRange> ranges;
  for (std::size_t at = 0; at + sizeof(Range) <= bytes.size(); at += sizeof(Range)) {
    Range range;
    std::memcpy(&range, bytes.data() + at, sizeof range);
    ranges.push_back({range.offset, range.bytes, range.name});
  }
  return ranges;
}

}  // namespace

template <class C>
cudaError_t load_instance() {
  (void)module<C>();
  return cudaSuccess;
}

template <class C>
cudaError_t launch_instance(KernelParams const& params, unsigned ctas, cudaStream_t) {
  Module const& m = module<C>();
  std::vector<emulator::NamedRange> ranges = shared_ranges(m);
  std::uint32_t const shared_bytes = ranges.front().bytes;
  ranges.erase(ranges.begin());
  LaunchConfig config{{ctas},
                      {C::kThreads},
                      shared_bytes,
                      device().seed++,
                      device().arithmetic,
                      std::move(ranges),
                      device().count_forms,
                      device().time_products,
                      device().trace};
  std::span<std::uint8_t const> const bytes(reinterpret_cast<std::uint8_t const*>(&params), sizeof params);
  device().add(emulator::launch(m, "attention_kernel", config, bytes, device().memory));
  if (params.parts == nullptr) return cudaSuccess;
  config.grid = {ctas, C::kConsumers};
  config.block = {kWarpgroupThreads};
  config.shared_bytes = 0;
  config.names.clear();
  config.seed = device().seed++;
  device().add(emulator::launch(m, "join_parts_kernel", config, bytes, device().memory));
  return cudaSuccess;
}

#define VCATTN_INSTANCE(scores, probabilities, head_dim)                                                                                  \
  template cudaError_t load_instance<TileConfig<Scores::scores, Probabilities::probabilities, head_dim>>();                               \
  template cudaError_t launch_instance<TileConfig<Scores::scores, Probabilities::probabilities, head_dim>>(KernelParams const&, unsigned, \
                                                                                                           cudaStream_t);
#define VCATTN_INSTANCES(scores)      \
  VCATTN_INSTANCE(scores, lines, 64)  \
  VCATTN_INSTANCE(scores, lines, 128) \
  VCATTN_INSTANCE(scores, exp, 64)    \
  VCATTN_INSTANCE(scores, exp, 128)
VCATTN_INSTANCES(f16)
VCATTN_INSTANCES(f32)
VCATTN_INSTANCES(s32)

}  // namespace vcattn::attention_sm90a
