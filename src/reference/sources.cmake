vcattn_layer(reference
  SOURCES
    reference/attention.cpp
    reference/codecs.cpp
    reference/preparation.cpp
    reference/probabilities.cpp
    reference/problem_rows.cpp
    reference/slab.cpp
    reference/stages.cpp
    reference/tensor_core.cpp
    reference/tile_ordered.cpp
  LINK vcattn_formats)
