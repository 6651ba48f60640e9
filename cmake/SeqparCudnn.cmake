# The headers of cuDNN and of its frontend. libcudnn.so.9 itself is opened at run time.
set(SEQPAR_CUDNN_FRONTEND_DIR "" CACHE PATH "Folder of cudnn-frontend: the folder of cudnn_frontend.h, or its parent")
set(cudnn_frontend_download ${PROJECT_BINARY_DIR}/cudnn-frontend)

function(seqpar_find_cudnn_frontend)
  find_path(SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
            HINTS ${SEQPAR_CUDNN_FRONTEND_DIR} ${cudnn_frontend_download} PATH_SUFFIXES include
            DOC "Folder of cudnn_frontend.h")
endfunction()

seqpar_find_cudnn_frontend()
if(NOT SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/cudnn_frontend.sh ${cudnn_frontend_download}
                  ERROR_VARIABLE cudnn_frontend_error)
  seqpar_find_cudnn_frontend()
endif()

find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import nvidia.cudnn; print(nvidia.cudnn.__path__[0])"
                  OUTPUT_VARIABLE cudnn_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_path(SEQPAR_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${cudnn_wheel}/include
          DOC "Folder of cudnn.h, of cuDNN 9")

if(NOT SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR OR NOT SEQPAR_CUDNN_INCLUDE_DIR)
  set(missing "")
  if(NOT SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR)
    string(APPEND missing "cudnn_frontend.h is missing, and downloading it failed:\n${cudnn_frontend_error}\n"
           "Set SEQPAR_CUDNN_FRONTEND_DIR to a copy of cudnn-frontend.\n")
  endif()
  if(NOT SEQPAR_CUDNN_INCLUDE_DIR)
    string(APPEND missing "cudnn.h is missing. Install cuDNN 9 (NVIDIA's package cudnn9-cuda-13, or pip install "
           "nvidia-cudnn-cu13), or set SEQPAR_CUDNN_INCLUDE_DIR to its folder.\n")
  endif()
  message(FATAL_ERROR "seqpar: ${missing}SEQPAR_CUDNN=OFF builds without cuDNN: softmax attention on GPUs is then "
          "tens of times slower for bf16 and fp16.")
endif()
