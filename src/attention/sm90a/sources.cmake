if(NOT VCATTN_HAVE_CUDA)
  vcattn_layer(attention_sm90a SOURCES attention/sm90a/attention_absent.cpp LINK vcattn_formats)
  return()  # of this file
endif()
# One translation unit per kernel instance: scores x probabilities x head_dim.
set(sm90a_instances "")
foreach(scores f16 f32 s32)
  foreach(probabilities lines exp)
    foreach(head_dim 64 128)
      vcattn_cuda_instance(sm90a_instances attention_sm90a_${scores}_${probabilities}_${head_dim} attention/sm90a/instance.inl
        "VCATTN_SCORES ${scores}" "VCATTN_PROBABILITIES ${probabilities}" "VCATTN_HEAD_DIM ${head_dim}")
    endforeach()
  endforeach()
endforeach()
vcattn_layer(attention_sm90a SOURCES attention/sm90a/attention.cpp ${sm90a_instances} LINK vcattn_formats vcattn_device)
target_compile_options(vcattn_attention_sm90a PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
