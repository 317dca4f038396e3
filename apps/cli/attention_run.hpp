#pragma once

// A recipe on either device, its stages and the complete call: inputs and results in host memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "devices.hpp"
#include "vcattn/attention.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cli {

/// supports() or supports_call(), whichever these devices ask for.
Support run_support(Problem const& problem, Options const& options, Devices devices);

/// A problem, and memory for its results, on the devices where the stages run.
class AttentionRun {
 public:
  /// Copies q, k, v and the permutation to the GPU where preparation runs there. o: contiguous host memory, its dimensions in any order;
  /// lse: empty, or [B, H, Sq]. All must outlive the object. Errors: those of run_support(), out_of_memory.
  AttentionRun(Problem const& problem, Options const& options, Devices devices, MutableTensorView const& o, std::span<float> lse = {});

  // Each calls a stage `calls` times, one after another, and gives the seconds of one: by the clock on the CPU, by events of the device on
  // a GPU. Before attention(), and not timed, the results are filled with NaN, so that what is never written shows.

  /// prepare(). Prepared on the CPU for a GPU, it is copied there, which is not timed.
  double prepare(std::int64_t calls = 1);
  /// attention() of what prepare() made.
  double attention(std::int64_t calls = 1);
  /// attend(), the complete call; both stages must run on one device.
  double attend(std::int64_t calls = 1);

  /// Brings the results into host memory.
  void fetch();

  /// Of what prepare() made; NaN where that was on a GPU.
  double value_energy_removed() const { return prepared_.value_energy_removed(); }

 private:
  /// Memory on a GPU. What only preparation there needs is empty without.
  struct Gpu {
    Gpu(std::size_t o_bytes, std::size_t lse_bytes) : o(o_bytes), lse(lse_bytes) {}
    CudaBuffer o, lse;
    std::vector<CudaBuffer> inputs;
    std::optional<CudaBuffer> storage, workspace;
    CudaTimer timer;
  };

  void move_inputs_to_gpu();
  TensorView uploaded(TensorView const& tensor);
  void fill_with_nan();
  template <typename Body>
  double timed(Device device, std::int64_t calls, Body const& body);

  Problem problem_;  ///< in memory of the device that prepares
  Options options_;
  Devices devices_;
  Call call_;  ///< of prepare() and attend()
  Prepared prepared_;
  std::span<std::byte> host_o_;
  std::span<float> host_lse_;
  std::optional<Gpu> gpu_;
  MutableTensorView o_;  ///< on the device of attention
  std::span<float> lse_;
};

}  // namespace vcattn::cli
