// The Python module: empty, in the limited API. Importing it loads this library, whose static initialisers register the
// operators of ops.cpp with torch. Py_LIMITED_API is set by CMake (USE_SABI).
#include <Python.h>

extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", "Loads the operators of sm120_selftest into torch.", 0, nullptr, nullptr, nullptr,
      nullptr, nullptr};
  return PyModule_Create(&definition);
}
