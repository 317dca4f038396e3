set(sources grouping/value_rows.cpp grouping/kmeans.cpp grouping/order.cpp grouping/group_values.cpp grouping/energy.cpp grouping/grouping_options.cpp grouping/state_fit.cpp)
vcattn_isa_sources(sources grouping/nearest.inl)
vcattn_layer(grouping SOURCES ${sources} LINK vcattn_formats vcattn_device TBB::tbb)
target_link_libraries(vcattn_grouping PRIVATE fmt::fmt)
