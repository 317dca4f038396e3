vcattn_layer(dispatch SOURCES dispatch/info.cpp dispatch/options.cpp dispatch/validate.cpp LINK vcattn_formats vcattn_device)
