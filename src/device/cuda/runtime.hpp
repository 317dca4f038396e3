#pragma once

// The CUDA runtime behind plain functions, so that host code above this layer includes no CUDA header. In a build without CUDA,
// unavailable_reason() says so and everything else throws it.

#include <cstddef>
#include <memory>
#include <string>

namespace vcattn::device::cuda {

/// Empty if the current device can run the kernels of this build.
std::string unavailable_reason();
/// Throws ErrorCode::unsupported with that reason.
void require_device();
std::string device_description();
int multiprocessors();
int current_device();

std::shared_ptr<void> allocate(std::size_t bytes);
/// Makes the pool of the current device for allocate_on_stream(), which must not happen during a stream capture.
void create_memory_pool();
/// Memory for the work that is put on `stream` while the result lives, from a pool that keeps what it has had. May be captured into a
/// graph.
std::shared_ptr<void> allocate_on_stream(std::size_t bytes, void* stream);
void copy_to_device(void* device, void const* host, std::size_t bytes);
void copy_to_host(void* host, void const* device, std::size_t bytes, void* stream);
/// On `stream`, without waiting.
void copy_on_device(void* to, void const* from, std::size_t bytes, void* stream);
void fill(void* device, unsigned char value, std::size_t bytes);

std::shared_ptr<void> create_event();
void record_event(void* event, void* stream);
double elapsed_ms(void* start, void* stop);

}  // namespace vcattn::device::cuda
