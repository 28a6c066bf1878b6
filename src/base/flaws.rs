//! Flaws that a simulation plants in this client, and in its network and server, to see that it
//! finds them (`tests/simulation`). Only tests can have them.

/// Declares the flaws, and a list of all.
macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)+) => {
        /// A flaw, of which a simulation plants one at a time.
        #[cfg_attr(
            not(all(test, unix, not(leasehold_shuttle))),
            expect(dead_code, reason = "some are in the code of the simulation")
        )]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Flaw {
            $($(#[$doc])* $flaw,)+
        }

        #[cfg(all(test, unix, not(leasehold_shuttle)))]
        pub(crate) const ALL: &[Flaw] = &[$(Flaw::$flaw,)+];
    };
}

flaws! {
    // Of the client.
    /// A call fails that has the number of the one that another client lets fail.
    AnotherCallFails,
    /// A probe for a deadlock is passed on by a thread that is not in its way.
    AnyHoldPassesProbes,
    /// A circle is told whenever it is found.
    CircleIsRepeated,
    /// No probe is sent to another client.
    ProbesAreForgotten,
    /// The next hold of a tenure has the token of the one before.
    TokenIsRepeated,
    /// A lock that another client waits for is kept.
    WantedIsKept,

    // Of the network and the server.
    /// The server's clock runs faster than leases allow for.
    ClockRuns,
    /// A client is told that it has the lock although another one has it.
    HeldIsAcquired,
    /// A held lock is reported as an outage.
    HeldIsOutage,
    /// A lease ends at the server after half of its time.
    LeaseIsHalved,
    /// Messages reach another client.
    MessagesGoAstray,
    /// No client is registered as waiting.
    NeverRegisters,
    /// No client is ever woken.
    NoWakeUps,
    /// A failed request counts as one that has found the lock held.
    OutageIsHeld,
    /// The server admits one holder more than there are permits.
    PermitTooMany,
    /// A client that no longer waits stays registered.
    PlacesAreKept,
    /// A refused request counts as one that has found the lock held.
    RefusalIsHeld,
    /// A refused request counts as one that has got the lock.
    RefusalIsSuccess,
    /// The server says that it has released a hold, and has not.
    ReleaseDoesNothing,
    /// A release ends whatever hold there is.
    ReleaseEndsAny,
    /// The server says that it has renewed a hold, and has not.
    RenewalDoesNothing,
    /// A request that the replica has not acknowledged in time counts as one that it has.
    ShortfallIsSuccess,
    /// Tokens do not grow.
    StaleFence,
    /// A request without a reply never times out.
    TimeoutIsMissing,
    /// Tokens are what the clock shows, even if it was set back.
    TokenIsClock,
    /// A client is told that its release has failed, although it was executed.
    UnconfirmedRelease,
    /// A writer is admitted as a reader.
    WritersAreReaders,
}

#[cfg(all(test, unix, not(leasehold_shuttle)))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

/// Returns `true` if a simulation has planted this flaw.
#[cfg(all(test, unix, not(leasehold_shuttle)))]
pub(crate) fn flawed(flaw: Flaw) -> bool {
    planted() == Some(flaw)
}

/// No client that ships has one.
#[cfg(not(all(test, unix, not(leasehold_shuttle))))]
pub(crate) const fn flawed(_: Flaw) -> bool {
    false
}

#[cfg(all(test, unix, not(leasehold_shuttle)))]
pub(crate) fn planted() -> Option<Flaw> {
    PLANTED.get()
}

/// Plants a flaw in everything that this thread runs.
#[cfg(all(test, unix, not(leasehold_shuttle)))]
pub(crate) fn plant(flaw: Option<Flaw>) {
    PLANTED.set(flaw);
}
