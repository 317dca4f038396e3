// vcattn: low-bit attention for video diffusion transformers, from the command line.

#include "program.hpp"

int main(int argc, char** argv) { return vcattn::cli::run_program(argc, argv); }
