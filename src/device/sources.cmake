set(sources device/cpu/isa.cpp device/cpu/gemm.cpp)
vcattn_isa_sources(sources device/cpu/gemm_eigen.inl)
vcattn_layer(device SOURCES ${sources})
target_link_libraries(vcattn_device PUBLIC TBB::tbb PRIVATE Eigen3::Eigen)
