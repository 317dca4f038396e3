#pragma once

// PTX text to a Module. A form of an instruction that is not in forms() is refused with its name and line. Functions are inlined.

#include <memory>
#include <string>
#include <string_view>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

class ModuleLoader;

/// A module whose kernels are read when they are asked for. Errors: LoadError.
class LazyModule {
 public:
  explicit LazyModule(std::string_view ptx);
  LazyModule(LazyModule&&) noexcept;
  ~LazyModule();

  std::vector<std::string> kernel_names() const;
  /// With that kernel among `kernels`; those that were asked for before are, too.
  Module const& with_kernel(std::string const& name);

 private:
  std::unique_ptr<ModuleLoader> loader_;
};

/// All of it. Errors: LoadError.
Module load_module(std::string_view ptx);

}  // namespace vcattn::emulator
