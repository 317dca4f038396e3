#pragma once

// Where programs run.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/proof/program.hpp"

namespace vcattn::emulator::proof {

/// The output of a program in the emulator. Errors: LoadError for a form that it does not know, Fault.
std::vector<std::uint8_t> run_emulated(Program const& program, std::uint64_t seed);

/// A GPU through the CUDA driver. Errors: std::runtime_error with what the driver says.
class Card {
 public:
  Card();
  ~Card();
  Card(Card const&) = delete;
  Card& operator=(Card const&) = delete;

  std::string name() const;
  std::string driver() const;
  std::vector<std::uint8_t> run(Program const& program);

 private:
  struct Driver;
  std::unique_ptr<Driver> driver_;
};

}  // namespace vcattn::emulator::proof
