#pragma once

// What accesses of a warp cost: sectors of global memory, wavefronts and bank conflicts of shared memory.

#include <cstdint>

#include "emulator/executor.hpp"

namespace vcattn::emulator {

enum class Level : std::uint8_t { global, shared, local };

/// One instruction: `bytes` at each lane's address, for the lanes of `mask`.
void count_access(Counters& counters, Level level, std::uint64_t const* addresses, Mask mask, std::uint32_t bytes, bool is_write);

}  // namespace vcattn::emulator
