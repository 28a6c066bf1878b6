//! Spans of the crate `tracing`: one for each call for a lock, and one for each hold.
//!
//! A subscriber is the program's code, which may block or panic. So only threads that call this
//! library open and close spans, outside its locks; the thread that delivers events closes the span
//! of a lost hold. No span is ever entered, so the program's own spans and events are the same with
//! and without these.

#[cfg(not(feature = "tracing"))]
pub(crate) use none::{CallSpan, HoldSpan, OpenSpan};
#[cfg(feature = "tracing")]
pub(crate) use real::{CallSpan, HoldSpan, OpenSpan};

#[cfg(feature = "tracing")]
mod real {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use parking_lot::Mutex;
    use tracing::Span;
    use tracing::field::Empty;

    use crate::base::clock::elapsed;

    /// The span of a call for a lock, which ends when this is dropped.
    #[derive(Debug)]
    pub(crate) struct CallSpan(Option<Span>);

    impl CallSpan {
        pub(crate) fn open<N: AsRef<str>>(name: impl FnOnce() -> N) -> Self {
            Self(open(|| {
                let waited = Empty;
                let fence = Empty;
                tracing::info_span!(
                    target: "leasehold", "acquire", name = name().as_ref(), waited, fence
                )
            }))
        }

        /// Ends the span of a call that began at `begin`, with the fence if the call got one hold.
        pub(crate) fn close(self, begin: Instant, fence: impl FnOnce() -> Option<u64>) {
            guarded(move || {
                if let Some(span) = &self.0 {
                    span.record("waited", elapsed(begin).as_secs_f64());
                    fence().map(|fence| span.record("fence", fence));
                }
                drop(self);
            });
        }
    }

    /// The span of a hold, while it is open.
    #[derive(Debug, Default)]
    pub(crate) struct HoldSpan(Mutex<Option<OpenSpan>>);

    /// The span of a hold, for the thread that closes it.
    #[derive(Debug)]
    pub(crate) struct OpenSpan(Span);

    impl HoldSpan {
        pub(crate) fn open(&self, name: &str, fence: impl FnOnce() -> u64) {
            // Readers that share a hold share its span.
            if self.0.lock().is_some() {
                return;
            }
            let span = open(|| {
                let fence = fence();
                let lost = Empty;
                tracing::info_span!(target: "leasehold", "hold", name, fence, lost)
            });
            *self.0.lock() = span.map(OpenSpan);
        }

        pub(crate) fn take(&self) -> Option<OpenSpan> {
            self.0.lock().take()
        }

        /// Leaves the span to the thread that drops the guard.
        pub(crate) fn restore(&self, span: OpenSpan) {
            *self.0.lock() = Some(span);
        }
    }

    impl OpenSpan {
        pub(crate) fn close(self, lost: bool) {
            guarded(move || {
                self.0.record("lost", lost);
                drop(self);
            });
        }
    }

    /// Returns no span if no subscriber wants it, or if the subscriber panics.
    fn open(span: impl FnOnce() -> Span) -> Option<Span> {
        guarded(span).filter(|span| !span.is_disabled())
    }

    /// Catches the panic of a subscriber, so that the hold is not lost along with the span.
    fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(call)).ok()
    }
}

/// Without the feature there is nothing to open.
#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "these are the methods of the spans that there are with it")]
mod none {
    use std::convert::Infallible;
    use std::time::Instant;

    #[derive(Debug)]
    pub(crate) struct CallSpan;

    impl CallSpan {
        pub(crate) fn open<N>(_name: impl FnOnce() -> N) -> Self {
            Self
        }

        pub(crate) fn close(self, _begin: Instant, _fence: impl FnOnce() -> Option<u64>) {}
    }

    #[derive(Debug, Default)]
    pub(crate) struct HoldSpan(());

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct OpenSpan(Infallible);

    impl HoldSpan {
        pub(crate) fn open(&self, _name: &str, _fence: impl FnOnce() -> u64) {}

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
}
