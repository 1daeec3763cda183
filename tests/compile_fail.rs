//! What the types of handles forbid does not compile, and says why.

#![allow(missing_docs)]

#[test]
fn handles_forbid_what_they_do_not_own() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
