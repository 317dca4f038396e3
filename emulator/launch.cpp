#include "emulator/launch.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "emulator/fault.hpp"

namespace vcattn::emulator {

namespace {

constexpr std::uint32_t kMaxShared = 232448;
constexpr std::uint32_t kMaxThreads = 1024;

/// Memory of parameters and module variables, at addresses aligned as they ask.
class Aligned {
 public:
  Aligned(std::span<std::uint8_t const> bytes, std::size_t alignment) : storage_(bytes.size() + alignment) {
    auto const address = reinterpret_cast<std::uintptr_t>(storage_.data());
    data_ = storage_.data() + (alignment - address % alignment) % alignment;
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  std::uint8_t const* data() const { return data_; }

 private:
  std::vector<std::uint8_t> storage_;
  std::uint8_t* data_;
};

/// Adds read-only memory for the time of a launch.
class Lent {
 public:
  Lent(GlobalMemory& global, std::uint8_t const* data, std::size_t bytes, std::string const& name) : global_(global), data_(data) {
    global.add(data, bytes, name, Access::read, true);
  }
  Lent(Lent const&) = delete;
  Lent& operator=(Lent const&) = delete;
  ~Lent() { global_.remove(data_); }

 private:
  GlobalMemory& global_;
  std::uint8_t const* data_;
};

void check(Kernel const& kernel, LaunchConfig const& config, std::size_t parameter_bytes) {
  auto const refuse = [&](std::string const& what) { throw Fault("launch of " + kernel.name + ": " + what); };
  std::uint32_t const threads = config.block.count();
  std::uint32_t const most = kernel.max_threads != 0 ? kernel.max_threads : kMaxThreads;
  if (threads == 0 || threads > most) refuse(std::to_string(threads) + " threads, 1 to " + std::to_string(most) + " are possible");
  if (config.grid.count() == 0) refuse("an empty grid");
  if (std::uint32_t const bytes = kernel.shared_bytes + config.shared_bytes; bytes > kMaxShared) {
    refuse(std::to_string(bytes) + " bytes of shared memory");
  }
  if (parameter_bytes != kernel.parameter_bytes) {
    refuse(std::to_string(parameter_bytes) + " bytes of parameters, the kernel takes " + std::to_string(kernel.parameter_bytes));
  }
}

/// "warp_sums" of the variable of a function.
std::string plain_name(std::string const& symbol) {
  std::string const name = demangled(symbol);
  auto const last = name.rfind("::");
  return last == std::string::npos ? name : name.substr(last + 2);
}

}  // namespace

std::string demangled(std::string const& symbol) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> const text(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : symbol;
}

Kernel const& find_kernel(Module const& module, std::string const& part) {
  if (auto const exact = module.kernels.find(part); exact != module.kernels.end()) return exact->second;
  Kernel const* found = nullptr;
  for (auto const& [name, kernel] : module.kernels) {
    if (name.find(part) == std::string::npos) continue;
    if (found != nullptr) throw LoadError("two kernels contain " + part);
    found = &kernel;
  }
  if (found == nullptr) throw LoadError("no kernel contains " + part);
  return *found;
}

Counters launch(Module const& module, std::string const& name, LaunchConfig const& config, std::span<std::uint8_t const> parameters,
                GlobalMemory& global) {
  Kernel const& kernel = find_kernel(module, name);
  check(kernel, config, parameters.size());
  // Dynamic shared memory lies behind the static one.
  std::uint32_t dynamic_begin = kernel.shared_bytes;
  for (auto const& [symbol, alignment] : module.shared) dynamic_begin = std::max(dynamic_begin, aligned_up(kernel.shared_bytes, alignment));
  std::vector<NamedRange> names = config.names;
  for (NamedRange& range : names) range.offset += dynamic_begin;
  for (Placed const& variable : kernel.shared) names.push_back({variable.offset, variable.bytes, plain_name(variable.symbol)});
  Aligned const parameter(parameters, std::max<std::size_t>(kernel.parameter_alignment, 128));
  Grid grid{module,
            kernel,
            global,
            config.grid,
            config.block,
            dynamic_begin + config.shared_bytes,
            parameter.data(),
            std::move(names),
            config.arithmetic,
            config.count_forms,
            config.time_products,
            config.trace,
            Random(config.seed),
            {}};
  grid.counters.launches = 1;
  Lent const lent_parameter(global, parameter.data(), parameters.size(), "parameters");
  for (Placed const& p : kernel.parameters) grid.symbols[p.symbol] = reinterpret_cast<std::uint64_t>(parameter.data()) + p.offset;
  for (Placed const& variable : kernel.shared) grid.symbols[variable.symbol] = SharedMemory::kBase + variable.offset;
  for (Placed const& variable : kernel.local) grid.symbols[variable.symbol] = variable.offset;
  for (auto const& [symbol, alignment] : module.shared) grid.symbols[symbol] = SharedMemory::kBase + dynamic_begin;
  std::vector<Aligned> variables;
  variables.reserve(module.globals.size());
  std::vector<std::unique_ptr<Lent>> lent;
  for (auto const& [symbol, variable] : module.globals) {
    variables.emplace_back(variable.bytes, std::max(variable.alignment, 16u));
    lent.push_back(std::make_unique<Lent>(global, variables.back().data(), variable.bytes.size(), symbol));
    grid.symbols[symbol] = reinterpret_cast<std::uint64_t>(variables.back().data());
  }

  std::vector<std::uint32_t> order(config.grid.count());
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t i = config.grid.count(); i > 1; --i) std::swap(order[i - 1], order[grid.random.below(i)]);
  for (std::uint32_t const n : order) {
    Cta cta(grid, {n % config.grid.x, n / config.grid.x % config.grid.y, n / config.grid.x / config.grid.y});
    cta.run();
  }
  return grid.counters;
}

}  // namespace vcattn::emulator
