#pragma once

// lane_ops.inl for each instruction set of the host.

#include <span>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

namespace baseline {
std::span<Form const> lane_forms();
}
namespace avx2 {
std::span<Form const> lane_forms();
}
namespace avx512 {
std::span<Form const> lane_forms();
}

}  // namespace vcattn::emulator
