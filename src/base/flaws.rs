//! Flaws that the simulation (`tests/simulation`) plants in this client, its network and its
//! server, to see that it finds them. Only tests have them.

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
    // In the client.
    /// The lease of an adopted hold counts from the reply.
    AdoptionCountsFromReply,
    /// A request without a reply counts as one that was not executed.
    AmbiguityIsIgnored,
    /// A call fails when another client's call has the same number.
    AnotherCallFails,
    /// A probe for a deadlock is passed on by a thread that does not hold the lock.
    AnyHoldPassesProbes,
    /// A tenure goes on after its tokens are used up.
    BlockIsOverdrawn,
    /// A hold gets a block of tokens although no majority has given the same first one.
    BlockOfAMinority,
    /// A hold gets the longest of the blocks that a majority has given.
    BlockOfOneServer,
    /// A call for several locks succeeds once the first server has granted its part.
    CallHasPart,
    /// A circle is reported every time it is found.
    CircleIsRepeated,
    /// The lease of a hold counts from the reply, and not from the request.
    CountsFromReply,
    /// A hold that a request may have begun, or may still begin, is not released.
    DebtIsForgotten,
    /// A hold that an operator has ended goes on after its client was told.
    EndIsIgnored,
    /// The end of a hold is reported after the next call may already have the lock.
    EndIsReportedLate,
    /// A hold is relied on after its lease is over, and so is a tenure, kept or handed off.
    ExpiryIsIgnored,
    /// A client that no messages reach counts as listening.
    DeafIsHeard,
    /// A client that is closed does not release what it keeps.
    ClosedKeeps,
    /// Half of the servers of a quorum are enough.
    HalfIsEnough,
    /// A lock is kept for longer than configured.
    KeptForever,
    /// A reply after the end of its lease begins a hold.
    LateGrantCounts,
    /// A detached hold is renewed until it is adopted.
    LeftHoldIsRenewed,
    /// A call for several locks keeps what it has while it waits for the others.
    KeepsWhileWaiting,
    /// A call that leaves while a shared request is in flight does not release its hold.
    LeaversHoldIsForgotten,
    /// A lost hold keeps blocking the calls behind it.
    LossHoldsUpCalls,
    /// The watches of a hold do not report its loss.
    LossIsNotTold,
    /// A loss is reported twice.
    LossIsReportedTwice,
    /// A reply from before a call counts for it.
    OldReplyCounts,
    /// A tenure that is handed off is released, too.
    HandedOffIsReleased,
    /// No request is repeated after a transient failure.
    NoRetryWindow,
    /// All holds of a client have one number.
    NumberIsReused,
    /// A failed renewal is a loss.
    OneFailureLoses,
    /// The first of several readers to leave ends the hold of all.
    OneReaderEndsAll,
    /// One answered release settles a hold that a late request may begin again.
    OneReleaseSettles,
    /// No probe is sent to another client.
    ProbesAreForgotten,
    /// A call that gives several locks back omits one.
    PartIsLeft,
    /// No counter is raised when a majority has given different tokens.
    RaiseIsLeftOut,
    /// A client that asks for a lock is ignored.
    RecallIsIgnored,
    /// A tenure that is recalled is released, and goes on.
    RecalledGoesOn,
    /// After messages may have been missed no call tries again.
    ReconnectIsIgnored,
    /// A release without a reply is not repeated.
    ReleaseIsNotRepeated,
    /// A hold is renewed when its lease is over.
    RenewedTooLate,
    /// A repeated request asks for another hold.
    RepeatIsAnother,
    /// A repeated release that finds the hold gone reports a loss.
    RepeatedReleaseIsLoss,
    /// A shutdown forgets the holds that it ends.
    ShutdownForgets,
    /// A permit that no call needs any longer is not released.
    SpareIsForgotten,
    /// The threads of a client hand the lock off without limit.
    TenureHasNoEnd,
    /// A client stays registered as waiting when its call gives up.
    TimeoutIsForgotten,
    /// The next hold of a tenure has the token of the one before.
    TokenIsRepeated,
    /// The token of a hold is the smallest that a majority has given.
    TokenIsTheSmallest,
    /// `unlock` succeeds although the hold was lost.
    UnlockHidesLoss,
    /// `verify` does not ask the server.
    VerifyDoesNotAsk,
    /// A call waits for half of its time.
    WaitIsHalved,
    /// A call on a closed client waits.
    WaitsAfterClose,
    /// A wait for a loss that times out just as the lease ends misses the loss.
    WatchHidesLoss,
    /// A waiting call does not ask before it is woken.
    WaitsToBeWoken,
    /// A wake-up has no effect while a request is on its way.
    WakeUpTooEarly,
    /// A lock that another client waits for is kept.
    WantedIsKept,
    /// A recall has no effect if it overtakes the reply that grants the lock.
    WantedTooEarly,
    /// A hold that a quorum has withdrawn is requested again.
    WithdrawnIsRepeated,

    // In the network and the server.
    /// A request for several permits gets more than there are.
    BatchIsUncounted,
    /// A request for several permits gets what other clients wait for.
    BatchOvertakes,
    /// The counter shows the first token of a block, and not the last one.
    BlockIsNotReserved,
    /// The server's clock runs faster than leases allow for.
    ClockRuns,
    /// The counter of tokens ends with the hold.
    CounterEndsWithHold,
    /// A server gives the token that its counter shows, unless a greater one is proposed.
    CounterIsGivenAgain,
    /// The server grants a lock that another client holds.
    HeldIsAcquired,
    /// A held lock is reported as an outage.
    HeldIsOutage,
    /// A hold has no end unless it is released.
    LeaseHasNoEnd,
    /// A lease ends at the server after half of its time.
    LeaseIsHalved,
    /// Messages reach another client.
    MessagesGoAstray,
    /// No client is registered as waiting.
    NeverRegisters,
    /// No client is ever woken.
    NoWakeUps,
    /// A client that is woken is offered nothing.
    NothingIsOffered,
    /// An offer has no end unless it is taken.
    OfferHasNoEnd,
    /// An offer to one client does not keep out others.
    OffersAreIgnored,
    /// A failed request counts as one that has found the lock held.
    OutageIsHeld,
    /// The server admits one holder more than there are permits.
    PermitTooMany,
    /// A client that no longer waits stays registered.
    PlacesAreKept,
    /// A server gives the proposed token, whatever its counter shows.
    ProposalIsGiven,
    /// A client gets what is free although others wait for it.
    QueueIsIgnored,
    /// A server raises its counter whether or not it has the hold, and says so.
    RaiseIsUnchecked,
    /// A counter is set to the hold's token even if it shows a greater one.
    RaiseLowers,
    /// One server of a quorum raises its counter, and all say so.
    RaiseOfAMinority,
    /// A client that waits for a kept lock asks for it once.
    RecallIsNotRepeated,
    /// The reply that grants tokens does not show whether another client waits.
    RefillHidesWaiters,
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
    /// One server of a quorum renews a hold, and all say so.
    RenewalOfAMinority,
    /// A renewal renews whatever hold there is.
    RenewalRenewsAny,
    /// A renewal begins a hold that is gone.
    RenewalRevives,
    /// A request that finds its own hold adds a level.
    RepeatIsCounted,
    /// A request that finds its own hold begins the others that it asks for.
    RepeatTakesMore,
    /// A server of a quorum that has lost its data does not stay away for a lease.
    ReturnsTooSoon,
    /// Every waiting client is offered a place, even if there are too few.
    ServesTooMany,
    /// A request counts as replicated although the replica has not acknowledged it in time.
    ShortfallIsSuccess,
    /// A request for several locks gets those that are free.
    ServerGrantsPart,
    /// A client that waits behind one with an offer is not notified, although that one may have
    /// stopped.
    StandbyIsNotTold,
    /// Tokens do not grow.
    StaleFence,
    /// A request without a reply never times out.
    TimeoutIsMissing,
    /// Tokens are what the clock shows, even if it was set back.
    TokenIsClock,
    /// Tokens are a second ahead of the clock.
    TokensRunAhead,
    /// A client is told that its release has failed, although it was executed.
    UnconfirmedRelease,
    /// A client that got a lock from other servers of a quorum still waits at this one.
    WaitsElsewhere,
    /// A writer gets the last token, as readers do.
    WriterKeepsToken,
    /// A writer is admitted as a reader.
    WritersAreReaders,
}

#[cfg(all(test, unix, not(leasehold_shuttle)))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Flaw>> = const { std::cell::Cell::new(None) };
}

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
