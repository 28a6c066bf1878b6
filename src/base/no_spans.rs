//! What is in place of spans without the feature `tracing`: nothing.

#![expect(
    clippy::unused_self,
    reason = "these are the methods of the spans that there are with it"
)]

use std::convert::Infallible;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct CallSpan;

impl CallSpan {
    pub(crate) fn open<N>(_name: impl FnOnce() -> N) -> Self {
        Self
    }

    pub(crate) fn close(self, _waited: Duration, _fence: Option<u64>) {}
}

#[derive(Debug, Default)]
pub(crate) struct HoldSpan(());

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSpan(Infallible);

impl HoldSpan {
    pub(crate) fn open(&self, _name: &str, _fence: u64) {}

    pub(crate) fn take(&self) -> Option<OpenSpan> {
        None
    }

    pub(crate) fn restore(&self, span: OpenSpan) {
        match span.0 {}
    }
}

impl OpenSpan {
    pub(crate) fn close(self, _lost: bool) {
        match self.0 {}
    }
}
