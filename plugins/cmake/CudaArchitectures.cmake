# Sets CMAKE_CUDA_ARCHITECTURES: FASTOCR_CUDA_ARCHITECTURES, or every architecture that this nvcc compiles for.
# Needs CMAKE_CUDA_COMPILER; included before enable_language(CUDA), which would otherwise choose one itself.
if(FASTOCR_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${FASTOCR_CUDA_ARCHITECTURES})
else()
    execute_process(
        COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
        OUTPUT_VARIABLE _known OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    # Ampere, Orin, Ada, Hopper, Blackwell, Thor (110 from CUDA 13, 101 before).
    set(CMAKE_CUDA_ARCHITECTURES)
    foreach(_sm 80 86 87 89 90 100 101 110 120)
        if(_known MATCHES "compute_${_sm}(\n|$)")
            list(APPEND CMAKE_CUDA_ARCHITECTURES ${_sm}-real)
            set(_newest ${_sm})
        endif()
    endforeach()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} compiles for none of the architectures that the kernels run on "
            "(80 and newer); install CUDA 12.2 or newer, or set FASTOCR_CUDA_ARCHITECTURES")
    endif()
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${_newest}-virtual) # PTX, for what is newer still
endif()
message(STATUS "CUDA architectures: ${CMAKE_CUDA_ARCHITECTURES}")
