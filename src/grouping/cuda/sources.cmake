if(NOT VCATTN_HAVE_CUDA)
  vcattn_layer(grouping_cuda SOURCES grouping/cuda/group_values_absent.cpp LINK vcattn_formats)
  return()  # of this file
endif()
# One translation unit per way in which V lies in memory.
set(grouping_value_stages "")
foreach(source bf16 f16 any)
  vcattn_cuda_instance(grouping_value_stages grouping_value_stages_${source} grouping/cuda/value_stages.inl "VCATTN_SOURCE ${source}")
endforeach()
vcattn_layer(grouping_cuda SOURCES grouping/cuda/group_values.cpp grouping/cuda/index_stages.cu ${grouping_value_stages} LINK vcattn_formats vcattn_device)
target_link_libraries(vcattn_grouping_cuda PRIVATE fmt::fmt)
target_compile_options(vcattn_grouping_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
