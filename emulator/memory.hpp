#pragma once

// Memory that knows what may be read: global memory in allocations, shared memory of a CTA byte by byte.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/clocks.hpp"

namespace vcattn::emulator {

enum class Access : std::uint8_t { read, read_write };

/// Device memory: ranges of the host's memory under their own addresses. What was never written may not be read.
class GlobalMemory {
 public:
  struct Allocation {
    std::uint64_t begin = 0, end = 0;
    std::string name;
    Access access = Access::read;
    std::vector<std::uint8_t> written;  // per byte; empty: all
  };

  /// initialised: the kernel may read all of it; otherwise only what it has written.
  void add(void const* base, std::size_t bytes, std::string const& name, Access access, bool initialised);
  void remove(void const* base);
  void mark_written(void const* begin, std::size_t bytes);
  /// Bytes of one place to another, and whether they were ever written.
  void copy(void* to, void const* from, std::size_t bytes);
  /// Throws Fault unless all of it is device memory.
  void check(void const* begin, std::size_t bytes);

  /// Host memory of an access. Throws Fault outside of an allocation, for memory never written, or for a write to read-only memory.
  std::uint8_t const* read(std::uint64_t address, std::size_t bytes, std::size_t alignment);
  std::uint8_t* write(std::uint64_t address, std::size_t bytes, std::size_t alignment);

 private:
  Allocation& find(std::uint64_t address, std::size_t bytes, char const* what, std::size_t alignment);

  std::map<std::uint64_t, Allocation> allocations_;
  Allocation* last_ = nullptr;
};

/// Shared memory of one CTA.
class SharedMemory {
 public:
  /// What may be done with a byte; sets of bits.
  enum State : std::uint8_t {
    ready = 0,
    uninitialised = 1,
    filling = 2,   // an asynchronous copy will write it
    barrier = 4,   // part of an mbarrier
    unfenced = 8,  // written by a thread: asynchronous readers need a fence.proxy.async
    atomic = 16,   // changed by atomic operations, which need no order among themselves, since the last plain write
  };

  explicit SharedMemory(std::size_t bytes);

  std::size_t size() const { return bytes_; }
  void name(std::uint32_t offset, std::size_t bytes, std::string const& name) { names_[offset] = {offset + bytes, name}; }
  /// "kv_full[1]+8" or "shared+1024".
  std::string describe(std::uint64_t address) const;

  // Addresses are those that the kernel sees. Each throws Fault.
  std::uint8_t const* read(std::uint64_t address, std::size_t bytes, std::size_t alignment, Clock const& reader);
  /// Whether any of these bytes, which the CTA has, was never written.
  bool has_undefined(std::uint64_t address, std::size_t bytes) const {
    return address >= kBase && address + bytes <= kBase + bytes_ && any(address - kBase, bytes, uninitialised);
  }
  std::uint8_t* write(std::uint64_t address, std::size_t bytes, std::size_t alignment, Stamp writer);
  /// For an atomic operation.
  std::uint8_t* update(std::uint64_t address, std::size_t bytes, Clock const& reader, Stamp writer);
  /// 16 bytes for a wgmma.
  std::uint8_t const* read_chunk(std::uint64_t address, Clock const& reader) {
    std::uint64_t const offset = address - kBase;
    if (offset <= bytes_ - 16 && bytes_ >= 16 && address % 16 == 0) {
      std::uint64_t states[2];
      std::memcpy(states, states_.data() + offset, sizeof states);
      constexpr std::uint64_t kAtomicBytes = 0x1010101010101010u;
      if (((states[0] | states[1]) & ~kAtomicBytes) == 0 && stamps_[offset / 4].is_known_to(reader)) return data_.get() + offset;
    }
    return refuse_chunk(address, reader);
  }
  /// Marks bytes that a copy is going to fill, and spoils them.
  void begin_filling(std::uint64_t address, std::size_t bytes, std::size_t alignment = 16);
  std::uint8_t* fill(std::uint64_t address, std::size_t bytes, Stamp writer, State state = ready);
  void make_barrier(std::uint64_t address);
  void fence_async();

  static constexpr std::uint64_t kBase = 1024;    // of dynamic shared memory; the bytes below belong to the system
  static constexpr std::uint8_t kSpoiled = 0x7F;  // NaN as E4M3 and FP16

 private:
  std::size_t locate(std::uint64_t address, std::size_t bytes, char const* what, std::size_t alignment) const;
  std::uint8_t const* refuse_chunk(std::uint64_t address, Clock const& reader) const;
  void check_known(std::size_t offset, std::size_t bytes, Clock const& reader, char const* what) const;
  void check_atomics(std::size_t offset, std::size_t bytes, Clock const& reader) const;
  void stamp(std::size_t offset, std::size_t bytes, Stamp writer);
  [[noreturn]] void refuse(std::size_t offset, std::size_t bytes, char const* what) const;
  bool any(std::size_t offset, std::size_t bytes, unsigned states) const;

  std::size_t bytes_;
  std::unique_ptr<std::uint8_t[]> data_;
  std::vector<std::uint8_t> states_;
  std::vector<Stamp> stamps_;             // per word
  std::map<std::size_t, Clock> atomics_;  // by word: the last atomic operation of each warp since the last plain write
  std::map<std::uint32_t, std::pair<std::size_t, std::string>> names_;
  bool has_unfenced_ = false;
};

/// Local memory of the lanes of a warp.
class LocalMemory {
 public:
  explicit LocalMemory(std::uint32_t bytes) : bytes_(bytes), data_(std::size_t{32} * bytes), written_(std::size_t{32} * bytes) {}

  // address: within the lane's memory. Each throws Fault.
  std::uint8_t const* read(std::uint32_t lane, std::uint64_t address, std::size_t bytes) const;
  std::uint8_t* write(std::uint32_t lane, std::uint64_t address, std::size_t bytes);

 private:
  std::size_t locate(std::uint32_t lane, std::uint64_t address, std::size_t bytes, char const* what) const;

  std::uint32_t bytes_;
  std::vector<std::uint8_t> data_, written_;
};

}  // namespace vcattn::emulator
