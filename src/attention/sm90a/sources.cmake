if(NOT VCATTN_HAVE_CUDA)
  vcattn_layer(attention_sm90a SOURCES attention/sm90a/attention_absent.cpp LINK vcattn_formats)
  return()  # of this file
endif()
# One translation unit per kernel instance: scores x probabilities x head_dim.
set(sm90a_instances "")
foreach(scores f16 f32 s32)
  foreach(probabilities lines exp)
    foreach(head_dim 64 128)
      set(generated ${CMAKE_CURRENT_BINARY_DIR}/attention_sm90a_${scores}_${probabilities}_${head_dim}.cu)
      file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT
        "#define VCATTN_SCORES ${scores}\n#define VCATTN_PROBABILITIES ${probabilities}\n#define VCATTN_HEAD_DIM ${head_dim}\n#include \"attention/sm90a/instance.inl\"\n")
      list(APPEND sm90a_instances ${generated})
    endforeach()
  endforeach()
endforeach()
vcattn_layer(attention_sm90a SOURCES attention/sm90a/attention.cpp ${sm90a_instances} LINK vcattn_formats vcattn_device)
target_compile_options(vcattn_attention_sm90a PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
