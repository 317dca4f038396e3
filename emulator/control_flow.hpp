#pragma once

// Where lanes that took different ways meet again.

#include "emulator/ir.hpp"

namespace vcattn::emulator {

/// Sets Instruction::reconverge of every branch with a guard: the first instruction of the immediate post-dominator of its block, or the
/// number of instructions where there is none.
void set_reconvergence(Kernel& kernel);

bool is_branch(Kernel const& kernel, Instruction const& in);
bool is_return(Kernel const& kernel, Instruction const& in);

}  // namespace vcattn::emulator
