#pragma once

// What the emulator reports: a fault of the program that runs in it, or a program that it cannot read.

#include <stdexcept>
#include <string>

namespace vcattn::emulator {

/// A rule of the machine that the running kernel broke. The executor adds where: kernel line, warp, lanes, and what the others wait for.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// PTX that the loader does not know.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace vcattn::emulator
