// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include "anabatic/error.h"
#include "anabatic/plan.h"
#include "bindings.h"

namespace anabatic::python {
namespace {

namespace nb = nanobind;

void set_error(const char* type, const char* text) {
  nb::object error = nb::module_::import_("anabatic.errors").attr(type)(text);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void set_budget_error(const BudgetError& thrown) {
  nb::object error = nb::module_::import_("anabatic.errors").attr("BudgetError")(thrown.what());
  error.attr("smallest_bytes") = thrown.refusal().smallest_bytes;
  error.attr("reason") = thrown.refusal().reason;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const InvalidArgument& error) {
      set_error("InvalidArgument", error.what());
    } catch (const Unsupported& error) {
      set_error("Unsupported", error.what());
    } catch (const BudgetError& error) {
      set_budget_error(error);
    } catch (const ResourceError& error) {
      set_error("ResourceError", error.what());
    } catch (const CommError& error) {
      set_error("CommError", error.what());
    } catch (const InternalError& error) {
      set_error("InternalError", error.what());
    } catch (const Error& error) {
      set_error("Error", error.what());
    }
  });
}

}  // namespace anabatic::python
