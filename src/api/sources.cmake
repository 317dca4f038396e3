vcattn_layer(api SOURCES api/attention.cpp api/c_api.cpp api/cuda.cpp api/grouping.cpp api/schedule.cpp LINK vcattn_dispatch vcattn_grouping vcattn_prepare vcattn_attention_cpu)
