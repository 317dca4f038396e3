#pragma once

// Where the stages of a recipe run.

#include <string_view>

#include "vcattn/attention.hpp"

namespace vcattn::cli {

struct Devices {
  Device attention = Device::cpu, preparation = Device::cpu;
};

constexpr std::string_view device_name(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

}  // namespace vcattn::cli
