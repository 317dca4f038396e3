vcattn_layer(dispatch SOURCES dispatch/cuda.cpp dispatch/cuda_grouping.cpp dispatch/info.cpp dispatch/options.cpp dispatch/validate.cpp
  LINK vcattn_formats vcattn_device vcattn_prepare vcattn_grouping_cuda vcattn_attention_sm90a)
target_compile_definitions(vcattn_dispatch PRIVATE VCATTN_HAVE_CUDA=$<BOOL:${VCATTN_HAVE_CUDA}>)
