#pragma once

// Where the stages of a recipe run.

#include <string_view>

#include "vcattn/attention.hpp"

namespace vcattn::cli {

struct Devices {
  Device attention = Device::cpu, preparation = Device::cpu;
};

/// What Device::cuda is called: a program that is linked to another implementation of the CUDA runtime changes it.
inline std::string_view gpu_name = "cuda";

inline std::string_view device_name(Device device) { return device == Device::cpu ? "cpu" : gpu_name; }

}  // namespace vcattn::cli
