#pragma once

// Preparation on a CUDA device: the same bytes as prepare_cpu() from tensors in device memory, enqueued on a stream.

#include <cstddef>
#include <span>
#include <string>

#include "formats/prepared_layout.hpp"

namespace vcattn::preparation::cuda {

/// Empty if the kernels write this layout with these options; else what they need, what they got, what to do.
std::string unsupported_reason(formats::PreparedLayout const& layout, Options const& options);

/// Bytes of device scratch that prepare() needs.
std::size_t workspace_bytes(formats::PreparedLayout const& layout, Options const& options);

/// Fills every section of the slab but `sequences` and `permutation`, which must hold their values already. Tensors, rotary tables, slab
/// and workspace (256-byte aligned) are device memory; key lengths and cu_seqlens stay on the host. Allocates nothing on the device, waits
/// for nothing, may be captured into a graph. Results do not depend on what the workspace held.
void prepare(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab, std::byte* workspace, void* stream);

/// Writes the `sequences` section, on `stream`. Allocates nothing, waits for nothing, may be captured into a graph.
void write_sequences(std::span<formats::SequenceExtent const> sequences, formats::SequenceExtent* device_sequences, void* stream);

/// Loads the kernels, which must not happen during a capture.
void load_kernels();

}  // namespace vcattn::preparation::cuda
