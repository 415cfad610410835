//! Harness and suites over the whole product.
//!
//! Clients of a run write down what they asked, what they were told and what they believed
//! ([`history`]); one checker judges what they wrote ([`check`]), whoever made the run: real
//! processes today, a simulator later. `README.md` beside this folder says which invariant of
//! DESIGN §12 is proven where.

pub mod check;
pub mod history;
