#pragma once

// CPU back end: online softmax over prepared tiles, every recipe through one loop.

#include <cstddef>
#include <span>

#include "device/cpu/isa.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn::attention_cpu {

/// Scratch for one KV head: its decoded K, V and means. Tile buffers of the threads (a few hundred KiB each) come on top.
std::size_t workspace_bytes(formats::PreparedLayout const& layout, std::span<formats::SequenceExtent const> sequences,
                            Options const& options);

/// O and, where lse is not empty, the log-sum-exp. workspace: workspace_bytes() long. Arguments must have been validated.
void attention(formats::SlabView<std::byte const> const& slab, Options const& options, bool varlen, MutableTensorView const& o,
               std::span<float> lse, std::byte* workspace, device::cpu::Isa isa);

}  // namespace vcattn::attention_cpu
