//! demo
use crate::args::{DemoArgs, DemoWorkerArgs, Global};
use crate::failure::Failure;
pub(crate) fn run(_: &Global, _: &DemoArgs) -> Result<u8, Failure> {
    Ok(1)
}
pub(crate) fn worker(_: &DemoWorkerArgs) -> Result<u8, Failure> {
    Ok(1)
}
