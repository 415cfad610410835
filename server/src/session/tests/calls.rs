//! Sessions that live by unary calls.
