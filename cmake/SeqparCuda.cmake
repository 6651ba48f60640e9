# CUDA: the runtime is linked statically and hidden, so that a build with CUDA loads on machines without a driver and
# toolkit; only NCCL's header is used, and the library is opened at run time.
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

if(SEQPAR_CUDNN)
  include(SeqparCudnn)
endif()

if(SEQPAR_NCCL)
  find_path(SEQPAR_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Folder of nccl.h")
  if(NOT EXISTS "${SEQPAR_NCCL_INCLUDE_DIR}/nccl.h")
    message(FATAL_ERROR "seqpar: nccl.h is missing (SEQPAR_NCCL_INCLUDE_DIR is ${SEQPAR_NCCL_INCLUDE_DIR}). Install NCCL (NVIDIA's package libnccl-dev), or set SEQPAR_NCCL_INCLUDE_DIR "
            "to its folder.\nSEQPAR_NCCL=OFF builds without NCCL: GPUs that cannot map each other's memory are then an error.")
  endif()
endif()
