#pragma once

// Instruction sets that the CPU kernels are compiled for, chosen once per process from what the processor reports.

#include <cstdint>
#include <span>

namespace vcattn::device::cpu {

enum class Isa : std::uint32_t { baseline, avx2, avx512 };

/// "baseline", "avx2" (x86-64-v3) or "avx512" (x86-64-v4).
char const* isa_name(Isa isa);

/// Sets this build has and this processor runs, ascending; never empty.
std::span<Isa const> available_isas();

/// The last of available_isas().
Isa best_isa();

}  // namespace vcattn::device::cpu
