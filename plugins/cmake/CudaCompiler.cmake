# Finds CUDA's compiler: sets CMAKE_CUDA_COMPILER, which is false where there is none. Included before enable_language(CUDA).
# JetPack and NVIDIA's packages put nvcc where PATH often does not look.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(FASTOCR_NVCC nvcc PATHS /usr/local/cuda/bin)
    mark_as_advanced(FASTOCR_NVCC)
    if(FASTOCR_NVCC)
        set(ENV{CUDACXX} "${FASTOCR_NVCC}")
    endif()
endif()
include(CheckLanguage)
check_language(CUDA)
