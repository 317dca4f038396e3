#pragma once

// A kernel as it runs: warps in slices of random length and order, their lanes together as long as they go the same way. Now and then a
// warp sleeps for long, at its start and where it has just released others, so that the others run ahead as far as their barriers let them.

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/barriers.hpp"
#include "emulator/copies.hpp"
#include "emulator/ir.hpp"
#include "emulator/matrix.hpp"
#include "emulator/memory.hpp"
#include "emulator/random.hpp"

namespace vcattn::emulator {

struct Dim {
  std::uint32_t x = 1, y = 1, z = 1;

  std::uint32_t count() const { return x * y * z; }
  std::uint32_t operator[](std::uint64_t d) const { return d == 0 ? x : d == 1 ? y : z; }
};

/// Part of shared memory that reports call by its name.
struct NamedRange {
  std::uint32_t offset, bytes;
  std::string name;
};

/// Accesses of threads to one kind of memory.
struct Traffic {
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

struct Counters {
  std::uint64_t launches = 0, warp_instructions = 0, thread_instructions = 0;
  std::uint64_t matrix_instructions = 0;
  std::uint64_t copied_bytes = 0;  // from global to shared memory, by the copy engine and cp.async
  double matrix_seconds = 0;       // of processor time; only where asked for

  // Only where asked for.
  std::map<std::string, std::uint64_t> by_form;  // warp instructions by name
  Traffic global, shared, local;
  std::uint64_t global_sectors = 0;         // of 32 bytes, that the instructions touched
  std::uint64_t matrix_shared_bytes = 0;    // that wgmma read
  std::uint64_t shared_wavefronts = 0;      // of loads and stores
  std::uint64_t shared_bank_conflicts = 0;  // wavefronts beyond those that the bytes need

  Counters& operator+=(Counters const& more);
};

/// Every instruction of one warp as text.
struct Trace {
  std::ostream* out = nullptr;  // nullptr: none
  std::uint32_t cta = 0, warp = 0;
};

/// What the CTAs of a launch share.
struct Grid {
  Module const& module;
  Kernel const& kernel;
  GlobalMemory& global;
  Dim size, block;
  std::uint32_t shared_bytes = 0;
  std::uint8_t const* parameters = nullptr;
  std::vector<NamedRange> names = {};
  MatrixArithmetic arithmetic = MatrixArithmetic::exact;
  bool count_forms = false, time_products = false;
  Trace trace = {};
  Random random;
  Counters counters;
  /// Registers of each warp, which one CTA leaves to the next.
  std::vector<std::vector<std::uint32_t>> register_files = {};
  /// Addresses of the module's variables.
  std::map<std::string, std::uint64_t> symbols = {};
};

class Cta;

class Warp {
 public:
  Warp(Cta& cta, std::uint32_t index);

  /// Runs up to `count` instructions; fewer if it has to wait.
  Step run(std::uint32_t count);

  bool has_exited() const { return stack_.empty(); }
  Mask lanes_alive() const { return stack_.empty() ? 0 : stack_.front().mask; }
  Mask active() const { return stack_.back().mask; }
  Mask full() const { return full_; }
  /// Where it is: kernel line, PTX line, lanes, instruction.
  std::string where() const;
  std::string label() const;

  // For instructions.
  Cta& cta() { return cta_; }
  std::uint32_t index() const { return index_; }
  Lanes const& lanes() const { return lanes_; }
  Step branch(Instruction const& in, Mask taken);
  Step exit(Mask leaving);
  /// Throws Fault unless all lanes of the warp execute `in` together.
  void require_all_lanes(Mask mask, char const* what) const;
  template <typename T>
  T* slot(std::uint32_t number) const {
    return reinterpret_cast<T*>(lanes_.slots + number * static_cast<std::uint32_t>(kLanes));
  }

  MatrixQueue matrix;
  LocalMemory local;
  ThreadCopies copies;
  Clock clock;
  /// Time of what it writes now.
  Stamp stamp() const { return {index_, clock.time[index_]}; }
  /// What it knows, for others; what it does from now on is later.
  Clock release() {
    Clock const before = clock;
    ++clock.time[index_];
    return before;
  }
  /// A register holds shared memory that was never written. It may be moved and computed with; what depends on it may not
  /// reach memory, an address or a branch.
  void set_undefined(std::uint32_t slot, int lane, std::uint64_t address);
  /// Lanes in which a slot is not defined, and setting them, for products.
  bool any_undefined() const { return any_undefined_; }
  Mask undefined(std::uint32_t slot) const { return any_undefined_ ? undefined_[slot] : 0; }
  void set_undefined_lanes(std::uint32_t slot, Mask lanes) { undefined_[slot] = lanes; }
  std::uint32_t registers = 0;     // per thread
  std::string waits_for;           // for reports
  std::uint64_t sleeps_until = 0;  // step of the CTA
  std::uint64_t stalled_at = 0;    // event number of the CTA at which it last could not go on
  std::uint64_t barrier_round[16] = {};
  bool at_barrier[16] = {};

 private:
  struct Path {
    std::uint32_t pc, reconverge;
    Mask mask;
  };

  void fill_constants();
  void observe(Instruction const& in, Mask mask);
  void check_defined(Instruction const& in, Mask mask);
  void trace(Instruction const& in, Mask mask) const;

  Cta& cta_;
  Kernel const& kernel_;
  std::uint32_t index_;
  bool observed_, traced_;
  Mask full_;
  std::vector<Mask> predicates_;
  std::vector<Mask> undefined_, undefined_predicates_;  // lanes, by slot and number
  bool any_undefined_ = false;
  std::uint64_t undefined_address_ = 0;  // of the last one
  Lanes lanes_;
  std::vector<Path> stack_;  // the last one runs
};

/// A numbered barrier.
struct CtaBarrier {
  std::uint32_t arrived = 0;  // warps
  std::uint64_t round = 0;
  Clock gathered, released;
  bool any_gathered = false, any_released = false;  // of the predicates of bar.red.or
};

class Cta {
 public:
  Cta(Grid& cta_grid, Dim index);

  /// To its end. Throws Fault with everything that is known about the place.
  void run();

  /// Something happened that may let a waiting warp go on.
  void event() { ++events_; }
  /// Warps that take part in a barrier: all of `threads`, or those that have not exited.
  void release_barrier(std::uint32_t number);
  /// The n-th product of a warp must be that of the other warps of its warpgroup. Throws Fault.
  void check_same_product(std::uint32_t warpgroup, std::size_t n, Instruction const& in, std::uint64_t a, std::uint64_t b);
  /// Throws Fault where a product that was not waited for reads one of these bytes.
  void check_not_read(std::uint64_t address, std::uint32_t bytes) const;

  Grid& grid;
  Dim index;
  SharedMemory shared;
  Mbarriers mbarriers;
  Copies copies;
  std::int64_t free_registers = 0;
  CtaBarrier barriers[16];
  std::vector<std::unique_ptr<Warp>> warps;

  std::uint32_t warps_alive() const;

 private:
  void step();
  Warp* next_warp();
  void complete_copy(bool slow_ones);
  [[noreturn]] void report(Warp const* warp, std::string const& what) const;

  struct Product {
    Instruction const* in;
    std::uint64_t a, b;
  };

  std::vector<std::vector<Product>> products_;  // of each warpgroup, in their order
  std::uint64_t events_ = 1, steps_ = 0;
};

}  // namespace vcattn::emulator
