// SPDX-License-Identifier: Apache-2.0
// The five kinds of error that Anabatic throws, with one base class. The text has the form
// "[where] expected X, got Y; hint".
#pragma once
#include <stdexcept>
#include <string>

#include "anabatic/export.h"

namespace anabatic {

class ANABATIC_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's mistake: a bad argument, config, graph or file content.
class ANABATIC_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A valid request that nothing here can do. The text lists every candidate and why it does not fit.
class ANABATIC_API Unsupported : public Error {
 public:
  using Error::Error;
};

// Memory, disk or the operating system failed.
class ANABATIC_API ResourceError : public Error {
 public:
  using Error::Error;
};

// A rank, a peer or a collective failed.
class ANABATIC_API CommError : public Error {
 public:
  using Error::Error;
};

// A bug in Anabatic. The text has the condition and file:line.
class ANABATIC_API InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace anabatic
