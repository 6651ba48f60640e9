# oneDNN: the matrix product. Defines OneDnn::OneDnn. oneDNN's own package file asks for the headers of OpenCL, which
# nobody needs who only multiplies on the processor. The OpenMP runtime is linked because its thread count is set.
find_path(OneDnn_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
find_library(OneDnn_LIBRARY NAMES dnnl)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDnn REQUIRED_VARS OneDnn_LIBRARY OneDnn_INCLUDE_DIR)
mark_as_advanced(OneDnn_INCLUDE_DIR OneDnn_LIBRARY)

if(OneDnn_FOUND AND NOT TARGET OneDnn::OneDnn)
  add_library(OneDnn::OneDnn UNKNOWN IMPORTED GLOBAL)
  set_target_properties(OneDnn::OneDnn PROPERTIES
    IMPORTED_LOCATION ${OneDnn_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${OneDnn_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES gomp)
endif()
