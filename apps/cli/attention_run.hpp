#pragma once

// Attention on either device: preparation on the CPU, attention where it is asked for, results in host memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "vcattn/attention.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cli {

/// A prepared problem on the device where its attention runs, with memory for the results there.
class AttentionRun {
 public:
  /// Prepares, and for Device::cuda copies what was prepared. o: contiguous host memory, its dimensions in any order; lse: empty, or
  /// [B, H, Sq]. Both must outlive the object. Errors: those of prepare() and to_cuda().
  AttentionRun(Problem const& problem, Options const& options, Device device, MutableTensorView const& o, std::span<float> lse = {});

  /// Calls attention() `calls` times, one after another, and gives the seconds of one: by the clock on the CPU, by events of the device on
  /// a GPU. Before that, and not timed, the results are filled with NaN, so that what is never written shows.
  double attend(std::int64_t calls = 1);
  /// Brings the results of attend() into host memory.
  void fetch();

  /// Seconds of prepare() on the CPU; copies are not in it.
  double prepare_seconds() const { return prepare_seconds_; }
  double value_energy_removed() const { return prepared_.value_energy_removed(); }

 private:
  /// Where results go on a GPU.
  struct Gpu {
    Gpu(std::size_t o_bytes, std::size_t lse_bytes) : o(o_bytes), lse(lse_bytes) {}
    CudaBuffer o, lse;
    CudaTimer timer;
  };

  void fill_with_nan();
  double attend_on_cpu(std::int64_t calls);
  double attend_on_gpu(std::int64_t calls);

  Prepared prepared_;
  std::span<std::byte> host_o_;
  std::span<float> host_lse_;
  std::optional<Gpu> gpu_;
  MutableTensorView o_;  ///< on the device
  std::span<float> lse_;
  double prepare_seconds_ = 0;
};

}  // namespace vcattn::cli
