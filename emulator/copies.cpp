#include "emulator/copies.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulator/fault.hpp"

namespace vcattn::emulator {

namespace {

/// The map behind an address, checked.
TensorMap map_at(GlobalMemory& global, std::uint64_t address) {
  TensorMap map;
  std::memcpy(&map, global.read(address, sizeof map, 64), sizeof map);
  check_tensor_map(map);
  return map;
}

}  // namespace

void Copies::start(Copy const& copy) {
  mbarriers_.check_copy(copy.barrier);
  shared_.begin_filling(copy.to, copy.bytes);
  pending_.push_back(copy);
}

void Copies::start_bytes(std::uint64_t to, std::uint64_t from, std::uint32_t bytes, std::uint64_t barrier, Clock const& clock) {
  if (bytes % 16 != 0) throw Fault("bulk copy of " + std::to_string(bytes) + " bytes, which is no multiple of 16");
  start({to, from, bytes, barrier, false, random_.one_in(2), 0, 0, clock});
}

std::uint32_t Copies::start_box(std::uint64_t to, std::uint64_t map, std::int32_t column, std::int32_t row, std::uint64_t barrier,
                                Clock const& clock) {
  if (to % 128 != 0) throw Fault("tensor copy to " + shared_.describe(to) + ", which is not aligned to 128 bytes");
  TensorMap const tensor = map_at(global_, map);
  std::uint32_t const bytes = tensor.box_bytes();
  // Measured: an illegal instruction on sm_90, inside the tensor and before it.
  if (column * static_cast<std::int64_t>(tensor.element_bytes) % 16 != 0) {
    throw Fault("tensor copy from column " + std::to_string(column) + ", which is no multiple of 16 bytes");
  }
  start({to, map, bytes, barrier, true, random_.one_in(2), column, row, clock});
  return bytes;
}

std::uint32_t Copies::complete_one(bool slow_ones) {
  std::size_t const i = random_.below(static_cast<std::uint32_t>(pending_.size()));
  if (pending_[i].slow && !slow_ones) return 0;
  std::swap(pending_[i], pending_.back());
  Copy const copy = pending_.back();
  pending_.pop_back();
  if (copy.box) {
    copy_box(copy);
  } else {
    std::memcpy(shared_.fill(copy.to, copy.bytes, mbarriers_.stamp(copy.barrier)), global_.read(copy.from, copy.bytes, 16), copy.bytes);
  }
  mbarriers_.complete(copy.barrier, copy.bytes, copy.clock);
  return copy.bytes;
}

void Copies::copy_box(Copy const& copy) {
  TensorMap const map = map_at(global_, copy.from);
  std::uint32_t const row_bytes = map.box_columns * map.element_bytes;
  std::vector<std::uint8_t> line(row_bytes);
  std::uint8_t* const to = shared_.fill(copy.to, copy.bytes, mbarriers_.stamp(copy.barrier));
  for (std::uint32_t r = 0; r < map.box_rows; ++r) {
    std::int64_t const row = std::int64_t{copy.row} + r;
    std::memset(line.data(), 0, row_bytes);
    std::int64_t const first = std::max<std::int64_t>(copy.column, 0);
    std::int64_t const end = std::min<std::int64_t>(std::int64_t{copy.column} + map.box_columns, map.columns);
    if (row >= 0 && row < map.rows && first < end) {
      auto const bytes = static_cast<std::size_t>((end - first) * map.element_bytes);
      std::uint64_t const from = map.base + static_cast<std::uint64_t>(row * map.row_bytes + first * map.element_bytes);
      std::memcpy(line.data() + (first - copy.column) * map.element_bytes, global_.read(from, bytes, map.element_bytes), bytes);
    }
    for (std::uint32_t chunk = 0; chunk < row_bytes; chunk += 16) {
      std::uint64_t const plain = copy.to + std::uint64_t{r} * row_bytes + chunk;
      std::memcpy(to + (swizzled(plain, map.swizzle) - copy.to), line.data() + chunk, 16);
    }
  }
}

void ThreadCopies::start(GlobalMemory& global, SharedMemory& shared, std::uint32_t lane, std::uint64_t to, std::uint64_t from,
                         std::uint32_t bytes, std::uint32_t there) {
  if (there > bytes) throw Fault("cp.async of " + std::to_string(there) + " bytes into " + std::to_string(bytes));
  if (there != 0) {  // otherwise the address does not matter
    if (from % bytes != 0) throw Fault("cp.async from an address that is not aligned to " + std::to_string(bytes) + " bytes");
    (void)global.read(from, there, 1);
  }
  shared.begin_filling(to, bytes, bytes);
  pending_.push_back({lane, open_group_[lane], to, from, bytes, there});
}

void ThreadCopies::commit(Mask lanes) {
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) open_group_[lane] += (lanes >> lane) & 1u;
}

void ThreadCopies::wait(GlobalMemory& global, SharedMemory& shared, Mask lanes, std::uint32_t groups, Stamp writer) {
  std::erase_if(pending_, [&](Copy const& copy) {
    if (((lanes >> copy.lane) & 1u) == 0 || copy.group + groups >= open_group_[copy.lane]) return false;
    std::uint8_t* const to = shared.fill(copy.to, copy.bytes, writer, SharedMemory::unfenced);
    std::memset(to, 0, copy.bytes);
    if (copy.there != 0) std::memcpy(to, global.read(copy.from, copy.there, 1), copy.there);
    return true;
  });
}

}  // namespace vcattn::emulator
