set(sources prepare/prepare.cpp prepare/query_key.cpp prepare/shaping.cpp prepare/tile.cpp prepare/value.cpp)
vcattn_isa_sources(sources prepare/shape_row.inl)
vcattn_layer(prepare SOURCES ${sources} LINK vcattn_formats vcattn_device)
