set(sources attention/cpu/attention.cpp attention/cpu/softmax_tile.cpp)
vcattn_isa_sources(sources attention/cpu/softmax_tile.inl)
vcattn_layer(attention_cpu SOURCES ${sources} LINK vcattn_formats vcattn_device)
target_link_libraries(vcattn_attention_cpu PRIVATE Eigen3::Eigen)
