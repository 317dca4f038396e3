#pragma once

// What steers the compiler and leaves no instruction behind.

namespace vcattn::ptx {

/// In the body of an `if` that is hardly ever taken: keeps the branch from becoming a selection of every value that the body writes.
__device__ __forceinline__ void keep_branch() { asm volatile(""); }

}  // namespace vcattn::ptx
