// vcattn_emulator_record_kernels VECTORS RAW DATE COMMIT: whole kernels on the GPU; writes VECTORS, and every output into the folder RAW.

#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "emulator/proof/kernels.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::emulator::proof {
namespace {

void write(std::string const& path, std::vector<std::uint8_t> const& bytes) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

void record(std::string const& vectors_path, std::string const& raw, std::string const& date, std::string const& commit) {
  std::filesystem::create_directories(raw);
  Vectors vectors;
  vectors.conditions = {{"device", cuda_device_description()}, {"date", date}, {"commit", commit}};
  std::size_t number = 0, other_preparation = 0;
  for (KernelCase const& c : kernel_cases()) {
    std::string const name = c.name(), file = raw + "/k" + std::to_string(number++);
    KernelOutput const output = run_on_device(c);
    write(file + ".o", output.o);
    write(file + ".lse", output.lse);
    vectors.hashes[name + " prepared"] = block_hashes(output.prepared);
    if (c.has_exponentials()) {
      vectors.words[name + " o"] = sample(output.o);
      vectors.words[name + " lse"] = sample(output.lse);
    } else {
      vectors.hashes[name + " o"] = block_hashes(output.o);
      vectors.hashes[name + " lse"] = block_hashes(output.lse);
    }
    auto const prepared = prepare_on_device(c);
    write(file + ".prepared", prepared);
    if (prepared != output.prepared) ++other_preparation;
    if (prepared != output.prepared) std::cout << name << ": preparation on the GPU and on the CPU differ\n";
  }
  write_vectors(vectors_path, vectors);
  std::cout << number << " cases recorded, preparation differs in " << other_preparation << '\n';
}

}  // namespace
}  // namespace vcattn::emulator::proof

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: vcattn_emulator_record_kernels VECTORS RAW DATE COMMIT\n";
    return 2;
  }
  try {
    vcattn::emulator::proof::record(argv[1], argv[2], argv[3], argv[4]);
  } catch (std::exception const& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
