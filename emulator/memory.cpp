#include "emulator/memory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "emulator/fault.hpp"

namespace vcattn::emulator {

namespace {

std::string hex(std::uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(x));
  return text;
}

void check_alignment(std::uint64_t address, std::size_t alignment, char const* what) {
  if (address % alignment == 0) return;
  throw Fault(std::string(what) + " at " + hex(address) + " is not aligned to " + std::to_string(alignment) + " bytes");
}

/// Whether any byte has one of the bits of `states`.
bool has_bits(std::uint8_t const* bytes, std::size_t count, unsigned states) {
  std::uint64_t const wanted = states * 0x0101010101010101u;
  std::uint64_t found = 0;
  for (; count >= 8; bytes += 8, count -= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    found |= word & wanted;
  }
  for (; count > 0; ++bytes, --count) found |= *bytes & states;
  return found != 0;
}

}  // namespace

void GlobalMemory::add(void const* base, std::size_t bytes, std::string const& name, Access access, bool initialised) {
  auto const begin = reinterpret_cast<std::uint64_t>(base);
  Allocation allocation{begin, begin + bytes, name, access, {}};
  if (!initialised) allocation.written.resize(bytes);
  allocations_[begin] = std::move(allocation);
  last_ = nullptr;
}

void GlobalMemory::remove(void const* base) {
  allocations_.erase(reinterpret_cast<std::uint64_t>(base));
  last_ = nullptr;
}

GlobalMemory::Allocation& GlobalMemory::find(std::uint64_t address, std::size_t bytes, char const* what, std::size_t alignment) {
  check_alignment(address, alignment, what);
  if (last_ != nullptr && address >= last_->begin && address + bytes <= last_->end) return *last_;
  auto found = allocations_.upper_bound(address);
  if (found != allocations_.begin() && address < std::prev(found)->second.end) {
    Allocation& allocation = std::prev(found)->second;
    if (address + bytes <= allocation.end) return *(last_ = &allocation);
    throw Fault(std::string(what) + " of " + std::to_string(bytes) + " bytes at " + allocation.name + "+" +
                std::to_string(address - allocation.begin) + " passes its end at " + std::to_string(allocation.end - allocation.begin));
  }
  std::string near;
  if (found != allocations_.begin()) {
    Allocation const& before = std::prev(found)->second;
    near = ", " + std::to_string(address - before.end) + " bytes behind " + before.name;
  }
  throw Fault(std::string(what) + " at " + hex(address) + " is outside of all memory" + near);
}

std::uint8_t const* GlobalMemory::read(std::uint64_t address, std::size_t bytes, std::size_t alignment) {
  Allocation const& allocation = find(address, bytes, "global read", alignment);
  if (!allocation.written.empty()) {
    auto const* written = allocation.written.data() + (address - allocation.begin);
    if (std::find(written, written + bytes, 0) != written + bytes) {
      throw Fault("global read of memory never written, " + allocation.name + "+" + std::to_string(address - allocation.begin));
    }
  }
  return reinterpret_cast<std::uint8_t const*>(address);
}

std::uint8_t* GlobalMemory::write(std::uint64_t address, std::size_t bytes, std::size_t alignment) {
  Allocation& allocation = find(address, bytes, "global write", alignment);
  if (allocation.access == Access::read) {
    throw Fault("global write to read-only " + allocation.name + "+" + std::to_string(address - allocation.begin));
  }
  if (!allocation.written.empty()) std::memset(allocation.written.data() + (address - allocation.begin), 1, bytes);
  return reinterpret_cast<std::uint8_t*>(address);
}

void GlobalMemory::mark_written(void const* begin, std::size_t bytes) {
  if (bytes != 0) (void)write(reinterpret_cast<std::uint64_t>(begin), bytes, 1);
}

void GlobalMemory::check(void const* begin, std::size_t bytes) {
  if (bytes != 0) (void)find(reinterpret_cast<std::uint64_t>(begin), bytes, "copy", 1);
}

void GlobalMemory::copy(void* to, void const* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto const source = reinterpret_cast<std::uint64_t>(from);
  auto const target = reinterpret_cast<std::uint64_t>(to);
  Allocation const& read = find(source, bytes, "copy from", 1);
  std::vector<std::uint8_t> written(bytes, 1);
  if (!read.written.empty()) std::memcpy(written.data(), read.written.data() + (source - read.begin), bytes);
  std::memmove(write(target, bytes, 1), from, bytes);
  Allocation& changed = find(target, bytes, "copy to", 1);
  if (!changed.written.empty()) std::memcpy(changed.written.data() + (target - changed.begin), written.data(), bytes);
}

std::size_t LocalMemory::locate(std::uint32_t lane, std::uint64_t address, std::size_t bytes, char const* what) const {
  check_alignment(address, bytes, what);
  if (address + bytes > bytes_) {
    throw Fault(std::string(what) + " of " + std::to_string(bytes) + " bytes at local+" + std::to_string(address) + " of " +
                std::to_string(bytes_));
  }
  return std::size_t{lane} * bytes_ + address;
}

std::uint8_t const* LocalMemory::read(std::uint32_t lane, std::uint64_t address, std::size_t bytes) const {
  std::size_t const offset = locate(lane, address, bytes, "local read");
  auto const begin = written_.begin() + static_cast<std::ptrdiff_t>(offset);
  auto const end = begin + static_cast<std::ptrdiff_t>(bytes);
  if (std::find(begin, end, 0) != end) throw Fault("local read of memory never written, local+" + std::to_string(address));
  return data_.data() + offset;
}

std::uint8_t* LocalMemory::write(std::uint32_t lane, std::uint64_t address, std::size_t bytes) {
  std::size_t const offset = locate(lane, address, bytes, "local write");
  std::memset(written_.data() + offset, 1, bytes);
  return data_.data() + offset;
}

SharedMemory::SharedMemory(std::size_t bytes)
    : bytes_(bytes), data_(new std::uint8_t[bytes + 1]), states_(bytes, static_cast<std::uint8_t>(uninitialised)), stamps_(bytes / 4 + 1) {
  std::memset(data_.get(), kSpoiled, bytes);
}

std::string SharedMemory::describe(std::uint64_t address) const {
  std::uint64_t const offset = address - kBase;
  auto found = names_.upper_bound(static_cast<std::uint32_t>(offset));
  if (found != names_.begin() && offset < std::prev(found)->second.first) {
    --found;
    std::uint64_t const inside = offset - found->first;
    return found->second.second + (inside == 0 ? "" : "+" + std::to_string(inside));
  }
  return "shared+" + std::to_string(offset);
}

std::size_t SharedMemory::locate(std::uint64_t address, std::size_t bytes, char const* what, std::size_t alignment) const {
  check_alignment(address, alignment, what);
  if (address < kBase || address + bytes > kBase + bytes_) {
    throw Fault(std::string(what) + " of " + std::to_string(bytes) + " bytes at shared+" +
                std::to_string(static_cast<std::int64_t>(address - kBase)) + " is outside of the " + std::to_string(bytes_) +
                " bytes of the CTA");
  }
  return address - kBase;
}

bool SharedMemory::any(std::size_t offset, std::size_t bytes, unsigned states) const {
  return has_bits(states_.data() + offset, bytes, states);
}

void SharedMemory::refuse(std::size_t offset, std::size_t bytes, char const* what) const {
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    std::string const place = describe(kBase + i);
    if ((states_[i] & filling) != 0) throw Fault(std::string(what) + " of " + place + ", which a copy is filling");
    if ((states_[i] & barrier) != 0) throw Fault(std::string(what) + " of " + place + ", which is a barrier");
    if ((states_[i] & uninitialised) != 0) throw Fault(std::string(what) + " of " + place + ", which was never written");
    if ((states_[i] & unfenced) != 0) {
      throw Fault(std::string(what) + " of " + place + ", which a thread wrote without a fence.proxy.async since");
    }
  }
  throw Fault(std::string(what) + " refused");
}

void SharedMemory::check_known(std::size_t offset, std::size_t bytes, Clock const& reader, char const* what) const {
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    Stamp const& stamp = stamps_[word];
    if (stamp.is_known_to(reader)) continue;
    bool const copied = stamp.component >= Clock::kWarps;
    throw Fault(std::string(what) + " of " + describe(kBase + word * 4) +
                (copied ? ", which a copy has filled, without a wait for its barrier"
                        : ", which warp " + std::to_string(stamp.component) + " wrote, without a barrier in between"));
  }
}

void SharedMemory::check_atomics(std::size_t offset, std::size_t bytes, Clock const& reader) const {
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    auto const found = atomics_.find(word);
    for (std::uint32_t warp = 0; found != atomics_.end() && warp < Clock::kWarps; ++warp) {
      if (found->second.time[warp] <= reader.time[warp]) continue;
      throw Fault("shared read of " + describe(kBase + word * 4) + ", which warp " + std::to_string(warp) +
                  " changed by an atomic operation, without a barrier in between");
    }
  }
}

void SharedMemory::stamp(std::size_t offset, std::size_t bytes, Stamp writer) {
  std::fill(stamps_.begin() + static_cast<std::ptrdiff_t>(offset / 4),
            stamps_.begin() + static_cast<std::ptrdiff_t>((offset + bytes + 3) / 4), writer);
}

std::uint8_t const* SharedMemory::read(std::uint64_t address, std::size_t bytes, std::size_t alignment, Clock const& reader) {
  std::size_t const offset = locate(address, bytes, "shared read", alignment);
  if (any(offset, bytes, filling | barrier)) refuse(offset, bytes, "shared read");
  check_known(offset, bytes, reader, "shared read");
  if (any(offset, bytes, atomic)) check_atomics(offset, bytes, reader);
  return data_.get() + offset;
}

std::uint8_t* SharedMemory::write(std::uint64_t address, std::size_t bytes, std::size_t alignment, Stamp writer) {
  std::size_t const offset = locate(address, bytes, "shared write", alignment);
  if (any(offset, bytes, filling | barrier)) refuse(offset, bytes, "shared write");
  if (any(offset, bytes, atomic)) {
    for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) atomics_.erase(word);
  }
  std::memset(states_.data() + offset, unfenced, bytes);
  stamp(offset, bytes, writer);
  has_unfenced_ = true;
  return data_.get() + offset;
}

std::uint8_t* SharedMemory::update(std::uint64_t address, std::size_t bytes, Clock const& reader, Stamp writer) {
  constexpr char const* kWhat = "atomic operation on shared memory";
  std::size_t const offset = locate(address, bytes, kWhat, bytes);
  if (any(offset, bytes, uninitialised | filling | barrier)) refuse(offset, bytes, kWhat);
  check_known(offset, bytes, reader, kWhat);
  std::memset(states_.data() + offset, unfenced | atomic, bytes);
  std::uint32_t& time = atomics_[offset / 4].time[writer.component];
  time = std::max(time, writer.time);
  has_unfenced_ = true;
  return data_.get() + offset;
}

std::uint8_t const* SharedMemory::refuse_chunk(std::uint64_t address, Clock const& reader) const {
  constexpr std::size_t kChunk = 16;
  constexpr char const* kWhat = "asynchronous shared read";
  std::size_t const offset = locate(address, kChunk, kWhat, kChunk);
  check_known(offset, kChunk, reader, kWhat);
  refuse(offset, kChunk, kWhat);
}

void SharedMemory::begin_filling(std::uint64_t address, std::size_t bytes, std::size_t alignment) {
  std::size_t const offset = locate(address, bytes, "copy", alignment);
  if (any(offset, bytes, filling | barrier)) refuse(offset, bytes, "copy into");
  std::memset(states_.data() + offset, filling, bytes);
  std::memset(data_.get() + offset, kSpoiled, bytes);
}

std::uint8_t* SharedMemory::fill(std::uint64_t address, std::size_t bytes, Stamp writer, State state) {
  std::size_t const offset = address - kBase;
  std::memset(states_.data() + offset, state, bytes);
  has_unfenced_ = has_unfenced_ || state == unfenced;
  stamp(offset, bytes, writer);
  return data_.get() + offset;
}

void SharedMemory::make_barrier(std::uint64_t address) {
  std::size_t const offset = locate(address, 8, "barrier", 8);
  std::memset(states_.data() + offset, barrier, 8);
}

void SharedMemory::fence_async() {
  if (!has_unfenced_) return;
  for (std::uint8_t& state : states_) state &= static_cast<std::uint8_t>(~static_cast<unsigned>(unfenced));
  has_unfenced_ = false;
}

}  // namespace vcattn::emulator
