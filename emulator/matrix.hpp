#pragma once

// wgmma: products that a warp has started and not waited for. A warp computes its own 16 rows; the four warps of a warpgroup must start the
// same products in the same order.

#include <cstdint>
#include <deque>
#include <vector>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

enum class MatrixArithmetic : std::uint8_t {
  exact,  // as the tensor core
  fast,   // FP32 sums
};

class Warp;

class MatrixQueue {
 public:
  explicit MatrixQueue(std::uint32_t slots) : writer_(slots), reader_(slots), dirty_(slots, 1) {}

  /// Rules for registers that products use: called for every other instruction that touches one. Throws Fault.
  void check_access(Kernel const& kernel, Instruction const& in);
  void fence();
  /// Shared memory that a product reads.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };
  void start(Warp& warp, Instruction const& in, bool accumulate, std::uint64_t a, std::uint64_t b, Range a_range, Range b_range);
  /// Products started so far.
  std::size_t count() const { return count_; }
  void commit() { ++group_; }
  /// Until at most `pending` committed groups are unfinished.
  void wait(Warp& warp, std::uint32_t pending);
  /// Computes the oldest product, if there is one.
  void compute_one(Warp& warp);
  bool pending() const { return !queue_.empty(); }
  /// Whether a product that was not waited for reads shared memory between these addresses.
  bool reads(std::uint64_t begin, std::uint64_t end) const;

 private:
  struct Product {
    Instruction const* in;
    bool accumulate;
    std::uint64_t a, b;
    std::uint64_t group;
  };

  struct Reader {
    Range range;
    std::uint64_t group;
  };

  std::deque<Product> queue_;
  std::vector<Reader> readers_;  // of products not waited for
  std::uint64_t group_ = 1;      // of products not committed yet
  std::size_t count_ = 0;
  std::uint64_t finished_ = 0;                  // groups that were waited for
  std::vector<std::uint64_t> writer_, reader_;  // per slot, the last group that writes or reads it
  std::vector<std::uint8_t> dirty_;             // per slot, written since the last fence
};

}  // namespace vcattn::emulator
