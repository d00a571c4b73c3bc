// SPDX-License-Identifier: Apache-2.0
// Attributes of ops of plugins: plain data in a node, a JSON object in a call.
#pragma once
#include <string>
#include <string_view>

#include "spec/attributes.h"

namespace anabatic::plugin {

// A JSON object of booleans, integers, floats, strings and lists of integers; null or "" has none.
// A number with a point or an exponent is a float. InvalidArgument beginning with `place`.
spec::Attributes parse_attributes(const char* json, std::string_view place);

// One line.
std::string to_json(const spec::Attributes& attributes);

// `given` over `defaults`. An integer stands for a float. InvalidArgument beginning with `place`
// for an attribute that has no default, naming the nearest, or is of another kind.
spec::Attributes with_defaults(const spec::Attributes& defaults, const spec::Attributes& given,
                               std::string_view place);

// The value of an attribute from its text: of the kind of `like`. InvalidArgument.
spec::Attribute attribute_of(const spec::Attribute& like, std::string_view text,
                             std::string_view place);

}  // namespace anabatic::plugin
