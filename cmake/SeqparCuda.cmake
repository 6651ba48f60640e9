# CUDA: the runtime is linked statically and hidden, so that a build with CUDA loads where there is no driver and no
# toolkit; NCCL is used by its header alone and opened at run time.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc has it
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)

# Softmax attention on GPUs is cuDNN's through the headers of its frontend (scripts/cudnn_frontend.sh brings them);
# libcudnn.so.9 is opened at run time. Without them kernels of our own do everything, in fp32 arithmetic.
set(SEQPAR_CUDNN_FRONTEND_DIR "" CACHE PATH "Folder of cudnn-frontend: that of cudnn_frontend.h, or the one above")
find_path(SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${SEQPAR_CUDNN_FRONTEND_DIR} ${PROJECT_SOURCE_DIR}/.deps/cudnn-frontend PATH_SUFFIXES include)
if(SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR)
  find_path(SEQPAR_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(NOT SEQPAR_CUDNN_FRONTEND_INCLUDE_DIR OR NOT SEQPAR_CUDNN_INCLUDE_DIR)
  message(STATUS "seqpar: no cudnn_frontend.h or no cudnn.h: softmax attention on GPUs will be slow")
endif()

if(SEQPAR_NCCL)
  find_path(SEQPAR_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED
            DOC "Folder of nccl.h; SEQPAR_NCCL=OFF builds without it")
endif()
