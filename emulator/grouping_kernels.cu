// The stages of grouping that read V in one way, compiled to PTX for the emulator.

#include "grouping/cuda/value_stages.inl"
