vcattn_layer(formats SOURCES formats/prepared_layout.cpp)
