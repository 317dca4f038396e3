#pragma once

// The table of everything that the emulator can execute.

#include <span>
#include <string>
#include <vector>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

/// Forms by name: several patterns may share one.
std::span<Form const> forms_named(std::string_view name);

/// Forms of the parts of the emulator; names live as long as the program.
std::vector<Form> lane_forms();    // lane_ops.cpp
std::vector<Form> memory_forms();  // memory_ops.cpp
std::vector<Form> warp_forms();    // warp_ops.cpp: control flow, votes, shuffles, barriers of a CTA
std::vector<Form> async_forms();   // async_ops.cpp: mbarriers and bulk copies
std::vector<Form> matrix_forms();  // matrix.cpp: wgmma
std::vector<Form> mma_forms();     // mma_ops.cpp: mma.sync and ldmatrix

}  // namespace vcattn::emulator
