#include "emulator/matrix.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"
#include "emulator/matrix_kernels.hpp"

namespace vcattn::emulator {

namespace {

enum class Inputs : std::uint8_t { e4m3, f16, s8 };
enum class Sums : std::uint8_t { f16, f32, s32 };

/// m64 n k of a form; B of FP16 has N contiguous.
struct Shape {
  int n, k;
  Inputs inputs;
  Sums sums;
  bool a_in_registers;

  int element_bytes() const { return inputs == Inputs::f16 ? 2 : 1; }
  int sum_registers() const { return sums == Sums::f16 ? n / 4 : n / 2; }
};

MatrixKernels const& kernels() {
  static MatrixKernels const kKernels = matrix_kernels(device::cpu::best_isa());
  return kKernels;
}

/// Fields of a matrix descriptor, in bytes.
struct Descriptor {
  std::uint64_t start, leading, stride;
  Swizzle swizzle;
};

Descriptor decode(std::uint64_t bits) {
  auto const field = [bits](int at) { return ((bits >> at) & 0x3FFFu) << 4; };
  if (((bits >> 49) & 7u) != 0) throw Fault("matrix descriptor with a base offset");
  if ((bits & 0x3C00C000C000C000u & ~(std::uint64_t{7} << 49)) != 0) throw Fault("matrix descriptor with bits outside of its fields");
  return {field(0), field(16), field(32), static_cast<Swizzle>(bits >> 62)};
}

/// Bytes of a swizzle row.
std::uint64_t row_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes_128:
      return 128;
    case Swizzle::bytes_64:
      return 64;
    case Swizzle::bytes_32:
      return 32;
    case Swizzle::none:
      break;
  }
  throw Fault("matrix descriptor without swizzle is not known to the emulator");
}

/// Where a tile of `rows` rows along M or N, or of 16 rows along K, lies; swizzling stays within 128 bytes.
MatrixQueue::Range range_of(Descriptor const& d, int rows, bool k_major) {
  std::uint64_t const pitch = row_bytes(d.swizzle);
  auto const count = static_cast<std::uint64_t>(rows);
  std::uint64_t const last =
      k_major ? (count - 1) / 8 * d.stride + 7 * pitch + 31 : (count * 2 - 1) / pitch * d.leading + d.stride + 8 * pitch - 1;
  return {d.start & ~std::uint64_t{127}, ((d.start + last) | 127u) + 1};
}

/// Rows of 32 bytes of a K-major tile.
void gather_k_major(SharedMemory& shared, Clock const& clock, Descriptor const& d, int first_row, int rows, std::uint8_t* to) {
  std::uint64_t const pitch = row_bytes(d.swizzle);
  for (int r = first_row; r < first_row + rows; ++r) {
    auto const row = static_cast<std::uint64_t>(r);
    std::uint64_t const plain = d.start + row / 8 * d.stride + row % 8 * pitch;
    for (std::uint64_t chunk = 0; chunk < 32; chunk += 16, to += 16)
      std::memcpy(to, shared.read_chunk(swizzled(plain + chunk, d.swizzle), clock), 16);
  }
}

/// [16][n] of FP16, n contiguous.
void gather_n_major(SharedMemory& shared, Clock const& clock, Descriptor const& d, int n, std::uint16_t* to) {
  std::uint64_t const pitch = row_bytes(d.swizzle);
  auto const per_row = static_cast<int>(pitch / 2);
  for (std::uint64_t k = 0; k < 16; ++k) {
    for (int first = 0; first < n; first += 8, to += 8) {
      std::uint64_t const plain = d.start + static_cast<std::uint64_t>(first / per_row) * d.leading + k / 8 * d.stride + k % 8 * pitch +
                                  static_cast<std::uint64_t>(first % per_row) * 2;
      std::memcpy(to, shared.read_chunk(swizzled(plain, d.swizzle), clock), 16);
    }
  }
}

/// A in registers: 32 bytes of k per row; a[2 h + r] of a lane holds row lane / 4 + 8 r, bytes 16 h + 4 (lane % 4) on.
void gather_fragment(Warp& warp, std::uint32_t const* slots, std::uint8_t* to) {
  for (int part = 0; part < 4; ++part) {
    auto const* a = warp.slot<std::uint32_t>(slots[part]);
    for (int lane = 0; lane < kLanes; ++lane) {
      int const row = lane / 4 + 8 * (part % 2);
      std::memcpy(to + row * 32 + 16 * (part / 2) + 4 * (lane % 4), &a[lane], 4);
    }
  }
}

struct Tile {
  alignas(64) float sums[kWarpRows * kMaxColumns];
};

Shape const& shape_of(Instruction const& in);

void compute(Warp& warp, Instruction const& in, bool accumulate, std::uint64_t a_bits, std::uint64_t b_bits) {
  Shape const& shape = shape_of(in);
  SharedMemory& shared = warp.cta().shared;
  std::uint32_t const* sums_slots = in.operands.data();
  alignas(64) std::uint8_t a[kWarpRows * 32];
  alignas(64) std::uint8_t b[kMaxColumns * 32];
  if (shape.a_in_registers) {
    gather_fragment(warp, sums_slots + shape.sum_registers(), a);
  } else {
    gather_k_major(shared, warp.clock, decode(a_bits), static_cast<int>(warp.index() % 4) * kWarpRows, kWarpRows, a);
  }
  static thread_local Tile tile;
  std::uint32_t* registers[kMaxColumns / 2];
  for (int i = 0; i < shape.sum_registers(); ++i) registers[i] = warp.slot<std::uint32_t>(sums_slots[i]);
  if (accumulate) {
    (shape.sums == Sums::f16 ? kernels().load_f16 : kernels().load_f32)(registers, shape.n, tile.sums);
  } else {
    std::memset(tile.sums, 0, sizeof(float) * static_cast<std::size_t>(kWarpRows * shape.n));
  }
  bool const exact = warp.cta().grid.arithmetic == MatrixArithmetic::exact;
  if (shape.inputs == Inputs::f16) {
    alignas(64) std::uint16_t columns[16 * kMaxColumns];
    gather_n_major(shared, warp.clock, decode(b_bits), shape.n, columns);
    std::uint16_t rows[kWarpRows * 16];
    std::memcpy(rows, a, sizeof rows);
    (exact ? kernels().f16_exact : kernels().f16_fast)(rows, columns, shape.n, tile.sums);
  } else {
    gather_k_major(shared, warp.clock, decode(b_bits), 0, shape.n, b);
    if (shape.inputs == Inputs::s8) {
      std::int32_t sums[kWarpRows * kMaxColumns];
      auto const bytes = sizeof(std::int32_t) * static_cast<std::size_t>(kWarpRows * shape.n);
      std::memcpy(sums, tile.sums, bytes);
      kernels().s8(a, b, shape.n, sums);
      std::memcpy(tile.sums, sums, bytes);
    } else {
      (exact ? kernels().e4m3_exact : kernels().e4m3_fast)(a, b, shape.n, shape.sums == Sums::f16, tile.sums);
    }
  }
  (shape.sums == Sums::f16 ? kernels().store_f16 : kernels().store_f32)(tile.sums, shape.n, registers);
}

/// The same 64-bit number in every lane.
std::uint64_t uniform(Warp& warp, std::uint32_t slot, char const* what) {
  auto const* x = warp.slot<std::uint64_t>(slot);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (x[lane] != x[0]) throw Fault(std::string(what) + " differs between lanes 0 and " + std::to_string(lane));
  }
  return x[0];
}

/// Factors of the operands, which must be 1, and the transposition of B.
void check_number(Warp& warp, std::uint32_t slot, std::uint32_t expected, char const* what) {
  if (*warp.slot<std::uint32_t>(slot) != expected)
    throw Fault(std::string(what) + " must be " + std::to_string(expected) + " in this emulator");
}

/// Operands: sums; A as descriptor or registers; B; accumulate as predicate, or 1; factors of A and B; transposition of B.
template <bool kPredicate>
Step start_product(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "wgmma");
  Shape const& shape = shape_of(in);
  auto const* operand = in.operands.data() + shape.sum_registers();
  std::uint64_t a = 0;
  if (shape.a_in_registers) {
    operand += 4;
  } else {
    a = uniform(warp, *operand++, "the descriptor of A");
  }
  std::uint64_t const b = uniform(warp, *operand++, "the descriptor of B");
  bool accumulate = true;
  if constexpr (kPredicate) {
    Mask const p = warp.lanes().predicates[*operand++];
    if (p != 0 && p != kAllLanes) throw Fault("the scale-d predicate of a wgmma differs between lanes");
    accumulate = p != 0;
  } else {
    check_number(warp, *operand++, 1, "scale-d");
  }
  for (auto const* end = in.operands.data() + in.operands.size(); operand != end; ++operand)
    check_number(warp, *operand, 1, "an immediate of wgmma");
  if (static_cast<std::size_t>(shape.sum_registers()) > in.operands.size()) throw Fault("wgmma with too few accumulators");
  warp.cta().check_same_product(warp.index() / 4, warp.matrix.count(), in, a, b);
  MatrixQueue::Range const a_range = shape.a_in_registers ? MatrixQueue::Range{} : range_of(decode(a), 4 * kWarpRows, true);
  warp.matrix.start(warp, in, accumulate, a, b, a_range, range_of(decode(b), shape.n, shape.inputs != Inputs::f16));
  Counters& counters = warp.cta().grid.counters;
  ++counters.matrix_instructions;
  // A of this warp's rows; B once for the warpgroup.
  constexpr std::uint64_t kDepthBytes = 32;
  if (!shape.a_in_registers) counters.matrix_shared_bytes += kWarpRows * kDepthBytes;
  if (warp.index() % 4 == 0) counters.matrix_shared_bytes += static_cast<std::uint64_t>(shape.n) * kDepthBytes;
  return Step::next;
}

Step fence(Warp& warp, Instruction const&, Mask mask) {
  warp.require_all_lanes(mask, "wgmma.fence");
  warp.matrix.fence();
  return Step::next;
}
Step commit(Warp& warp, Instruction const&, Mask mask) {
  warp.require_all_lanes(mask, "wgmma.commit_group");
  warp.matrix.commit();
  return Step::next;
}
Step wait(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "wgmma.wait_group");
  warp.matrix.wait(warp, *warp.slot<std::uint32_t>(in.op[0]));
  return Step::next;
}

/// Forms of wgmma.mma_async that have a shape; the function of a form tells which.
struct ShapedForm {
  Form form;
  Shape shape;
};

template <int kIndex>
Step shaped_start(Warp& warp, Instruction const& in, Mask mask);

constexpr ShapedForm kShapedForms[] = {
    {{"wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3", "v=ddprr", nullptr, shaped_start<0>},
     {128, 32, Inputs::e4m3, Sums::f16, false}},
    {{"wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "v=ddprr", nullptr, shaped_start<1>},
     {128, 32, Inputs::e4m3, Sums::f32, false}},
    {{"wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8", "v=ddp", nullptr, shaped_start<2>}, {128, 32, Inputs::s8, Sums::s32, false}},
    {{"wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3", "v=vdprr", nullptr, shaped_start<3>},
     {136, 32, Inputs::e4m3, Sums::f32, true}},
    {{"wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3", "v=vdprr", nullptr, shaped_start<4>},
     {72, 32, Inputs::e4m3, Sums::f32, true}},
    {{"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", "v=vdrrrr", nullptr, shaped_start<5>},
     {128, 16, Inputs::f16, Sums::f32, true}},
    {{"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "v=vdrrrr", nullptr, shaped_start<6>}, {64, 16, Inputs::f16, Sums::f32, true}},
};

Shape const& shape_of(Instruction const& in) {
  for (ShapedForm const& shaped : kShapedForms) {
    if (shaped.form.machine == in.machine) return shaped.shape;
  }
  throw Fault("no wgmma");
}

template <int kIndex>
Step shaped_start(Warp& warp, Instruction const& in, Mask mask) {
  return start_product<kShapedForms[kIndex].shape.inputs != Inputs::f16>(warp, in, mask);
}

std::string name_of(Kernel const& kernel, Instruction const& in) { return "\"" + kernel.texts[in.text].substr(0, 60) + "\""; }

}  // namespace

MatrixKernels matrix_kernels(device::cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == device::cpu::Isa::avx512) return avx512::matrix_kernels();
  if (isa == device::cpu::Isa::avx2) return avx2::matrix_kernels();
#endif
  (void)isa;
  return baseline::matrix_kernels();
}

void MatrixQueue::check_access(Kernel const& kernel, Instruction const& in) {
  for (std::uint32_t const slot : in.reads) {
    if (writer_[slot] > finished_) throw Fault(name_of(kernel, in) + " reads a register that a wgmma not waited for is writing");
  }
  for (std::uint32_t const slot : in.writes) {
    if (writer_[slot] > finished_) throw Fault(name_of(kernel, in) + " writes a register that a wgmma not waited for is writing");
    if (reader_[slot] > finished_) throw Fault(name_of(kernel, in) + " writes a register that a wgmma not waited for is reading");
    dirty_[slot] = 1;
  }
}

void MatrixQueue::fence() { std::fill(dirty_.begin(), dirty_.end(), std::uint8_t{0}); }

void MatrixQueue::start(Warp& warp, Instruction const& in, bool accumulate, std::uint64_t a, std::uint64_t b, Range a_range,
                        Range b_range) {
  // `writes` are the sums; `reads` is A.
  auto const check = [&](std::uint32_t slot, bool is_sum) {
    if (dirty_[slot] != 0 && (accumulate || !is_sum)) {
      throw Fault(is_sum ? "wgmma adds to a register that was written after the last wgmma.fence"
                         : "wgmma reads a register of A that was written after the last wgmma.fence");
    }
    if (!is_sum && writer_[slot] > finished_) throw Fault("wgmma reads a register of A that a wgmma not waited for is writing");
  };
  for (std::uint32_t const slot : in.writes) check(slot, true);
  for (std::uint32_t const slot : in.reads) check(slot, false);
  for (std::uint32_t const slot : in.writes) writer_[slot] = group_;
  for (std::uint32_t const slot : in.reads) reader_[slot] = group_;
  ++count_;
  queue_.push_back({&in, accumulate, a, b, group_});
  readers_.push_back({a_range, group_});
  readers_.push_back({b_range, group_});
  if (warp.cta().grid.random.one_in(4)) {
    while (pending()) compute_one(warp);
  }
}

void MatrixQueue::wait(Warp& warp, std::uint32_t pending) {
  if (group_ <= pending + 1) return;
  std::uint64_t const last = group_ - 1 - pending;
  while (!queue_.empty() && queue_.front().group <= last) compute_one(warp);
  finished_ = std::max(finished_, last);
  std::erase_if(readers_, [&](Reader const& reader) { return reader.group <= finished_; });
}

bool MatrixQueue::reads(std::uint64_t begin, std::uint64_t end) const {
  return std::any_of(readers_.begin(), readers_.end(), [&](Reader const& r) { return r.range.begin < end && begin < r.range.end; });
}

void MatrixQueue::compute_one(Warp& warp) {
  if (queue_.empty()) return;
  Product const product = queue_.front();
  queue_.pop_front();
  Grid& grid = warp.cta().grid;
  std::clock_t const start = grid.time_products ? std::clock() : 0;
  compute(warp, *product.in, product.accumulate, product.a, product.b);
  if (grid.time_products) grid.counters.matrix_seconds += static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

std::vector<Form> matrix_forms() {
  std::vector<Form> forms = {
      {"wgmma.fence.sync.aligned", "", nullptr, fence},
      {"wgmma.commit_group.sync.aligned", "", nullptr, commit},
      {"wgmma.wait_group.sync.aligned", "=r", nullptr, wait},
  };
  for (ShapedForm const& shaped : kShapedForms) forms.push_back(shaped.form);
  return forms;
}

}  // namespace vcattn::emulator
