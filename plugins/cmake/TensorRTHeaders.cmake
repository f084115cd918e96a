# Finds TensorRT's headers: TENSORRT_ROOT (of CMake, then of the environment), the system's paths, a Python wheel.
# Sets TensorRT_INCLUDE_DIR, empty where there are none, and TensorRT_HEADERS_VERSION.
#
# The plugin needs no TensorRT library: all it calls is virtual, and the registry that loads it brings the library.
set(_root "${TENSORRT_ROOT}")
if(NOT _root)
    set(_root "$ENV{TENSORRT_ROOT}")
endif()
set(_suffixes include include/${CMAKE_LIBRARY_ARCHITECTURE})
unset(TensorRT_INCLUDE_DIR CACHE) # searched anew each time: the root may have changed
if(_root)
    find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h PATHS "${_root}" PATH_SUFFIXES ${_suffixes} NO_DEFAULT_PATH)
    if(NOT TensorRT_INCLUDE_DIR)
        message(FATAL_ERROR "TENSORRT_ROOT is ${_root}, where there is no include/NvInferRuntime.h; "
            "set it to the directory that a TensorRT tar file unpacks to")
    endif()
else()
    find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h PATHS /usr/local/tensorrt /opt/tensorrt PATH_SUFFIXES ${_suffixes})
endif()

if(NOT TensorRT_INCLUDE_DIR)
    find_package(Python3 COMPONENTS Interpreter QUIET)
    if(Python3_EXECUTABLE)
        # kernel-lens is a wheel that carries the headers; it is looked for, not imported.
        execute_process(
            COMMAND ${Python3_EXECUTABLE} -c
                "import importlib.util as u; s = u.find_spec('kernel_lens'); print(s.submodule_search_locations[0] if s else '')"
            OUTPUT_VARIABLE _wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        if(_wheel)
            find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h PATHS "${_wheel}/include/tensorrt" NO_DEFAULT_PATH)
        endif()
    endif()
endif()

if(TensorRT_INCLUDE_DIR)
    file(STRINGS "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" _lines REGEX "^#define [A-Z_]+ +[A-Z0-9_]+")
    set(TensorRT_HEADERS_VERSION "")
    foreach(_part MAJOR MINOR PATCH)
        # 10.11 and newer define NV_TENSORRT_MAJOR by way of another macro.
        set(_value "NV_TENSORRT_${_part}")
        while(_value MATCHES "^[A-Z]")
            set(_name "${_value}")
            unset(_value)
            foreach(_line IN LISTS _lines)
                if(_line MATCHES "^#define ${_name} +([A-Z0-9_]+)")
                    set(_value "${CMAKE_MATCH_1}")
                    break()
                endif()
            endforeach()
        endwhile()
        string(APPEND TensorRT_HEADERS_VERSION "${_value}.")
    endforeach()
    string(REGEX REPLACE "\\.$" "" TensorRT_HEADERS_VERSION "${TensorRT_HEADERS_VERSION}")
    message(STATUS "TensorRT headers: ${TensorRT_HEADERS_VERSION} in ${TensorRT_INCLUDE_DIR}")
endif()
