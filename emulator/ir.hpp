#pragma once

// A loaded PTX module: instructions with decoded operands.
//
// The registers of a warp are one array of slots. A slot holds 32 lanes of 32 bits; a 64-bit register takes two neighbouring slots, 16-bit
// registers lie zero-extended in a slot of their own. Immediates, special registers and addresses of symbols are slots too, filled when
// the kernel starts, so that an operand is always a slot. Predicates are masks of 32 lanes in an array of their own.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace vcattn::emulator {

inline constexpr int kLanes = 32;
using Mask = std::uint32_t;
inline constexpr Mask kAllLanes = ~Mask{0};

struct Instruction;

/// Registers of the warp that an instruction works on.
struct Lanes {
  std::uint32_t* slots;
  Mask* predicates;
};
/// An instruction that only moves numbers between registers of each lane, for the lanes of `mask`.
using LaneFunction = void (*)(Lanes const&, Instruction const&, Mask mask);

class Warp;
/// What a warp does after an instruction.
enum class Step : std::uint8_t {
  next,
  jumped,   // pc is set
  blocked,  // does this instruction again when what it waits for may have happened
  yielded,  // next, but another warp should have a turn
  exited,   // no lane is left
};
using MachineFunction = Step (*)(Warp&, Instruction const&, Mask mask);

/// A form of an instruction that the emulator knows. pattern: kinds of operands, destinations before `=`.
/// r, d, h: 32, 64, 16 bits; p: predicate; m: [address]; t: [map, {column, row}]; v: vector of any length, r or f; l: label; {..}: vector.
struct Form {
  char const* name;
  char const* pattern;
  LaneFunction lanes = nullptr;
  MachineFunction machine = nullptr;
};

struct Instruction {
  LaneFunction lanes = nullptr;  // one of the two
  MachineFunction machine = nullptr;
  // Slots and numbers of predicates in the order of the text, vectors element by element; the first of `operands`.
  std::uint32_t op[6] = {};
  std::int32_t guard = -1;  // predicate; -1: none
  bool guard_negated = false;
  bool touches_matrix = false;  // a register that a wgmma uses, too
  char result = 0;              // kind of its first destination; 0: none
  std::uint32_t target = 0;     // of a branch
  std::uint32_t reconverge = 0;
  std::int64_t offset[3] = {};  // of its addresses
  std::vector<std::uint32_t> operands;
  std::vector<std::uint32_t> reads, writes;  // slots that a wgmma uses, too
  // All registers: slots and numbers of predicates.
  std::vector<std::uint32_t> sources, results, source_predicates, result_predicates;
  std::uint32_t form = 0;                   // Kernel::form_names
  std::uint32_t line = 0;                   // of the PTX
  std::uint32_t file = 0, source_line = 0;  // of the CUDA source; 0: unknown
  std::uint32_t text = 0;                   // Kernel::texts
};

/// A slot that is filled when a kernel starts.
struct Constant {
  enum class Kind : std::uint8_t { number, symbol, tid, ntid, ctaid, nctaid, laneid, warpid } kind = Kind::number;
  std::uint32_t slot = 0;
  bool wide = false;         // 64 bits
  std::uint64_t number = 0;  // or the dimension 0..2
  std::string symbol;
  auto key() const { return std::tie(kind, wide, number, symbol); }
};

struct GlobalVariable {
  std::uint32_t alignment = 1;
  std::vector<std::uint8_t> bytes;
};

/// A parameter, or a variable of static shared memory: where it lies among its like.
struct Placed {
  std::string symbol;
  std::uint32_t offset = 0, bytes = 0;
};

/// Behind `offset`, aligned.
constexpr std::uint32_t aligned_up(std::uint32_t offset, std::uint32_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

struct Kernel {
  std::string name;
  std::vector<Placed> parameters, shared, local;
  std::uint32_t parameter_bytes = 0, parameter_alignment = 1;
  std::uint32_t shared_bytes = 0;  // static
  std::uint32_t local_bytes = 0;   // of each thread
  std::uint32_t max_threads = 0;   // .maxntid; 0: not said
  std::uint32_t slots = 0, predicates = 0;
  std::vector<Constant> constants;
  std::vector<Instruction> code;
  std::vector<std::string> texts;
  std::vector<std::string> form_names;
  std::uint32_t matrix_slots = 0;  // slots below this one are used by a wgmma
};

struct Module {
  std::map<std::string, Kernel> kernels;
  std::map<std::string, GlobalVariable> globals;
  std::map<std::string, std::uint32_t> shared;  // symbols of dynamic shared memory, alignment
  std::map<std::uint32_t, std::string> files;
};

}  // namespace vcattn::emulator
