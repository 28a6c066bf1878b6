//! The connections that one thread keeps to one or more nodes, for background jobs or for wake-ups.
//! They are outside the pool, so that a busy pool cannot delay renewals.
//!
//! The thread never connects itself: a node that does not answer, or that hangs in the login, must
//! not delay what the thread does at other nodes, or at its own deadlines. So each connection is
//! opened on a short-lived thread ([`opening`]). A [`BackgroundConnection`] is in one of these
//! states:
//!
//! | state | until | then |
//! |---|---|---|
//! | closed | a job is to be sent, or a message to be waited for | opening |
//! | closed | the same, and the node keeps a pause of its own | failed |
//! | opening | the short-lived thread has connected | open |
//! | opening | it has failed to connect | failed |
//! | open | the server has moved, or its connections are no longer to be trusted | closed |
//! | open, for jobs | an error or a long silence, and there is another job to send | closed |
//! | open, for wake-ups | an error or a long silence | failed |
//! | open | what it has logged in with expires soon | open, until a second one is open too |
//! | failed | a pause is over | opening |
//!
//! Whatever is in flight on a connection that is closed has failed.
//!
//! [`jobs`] and [`wakeups`] use such connections for all stores. What differs from store to store
//! is a policy: which nodes there are, where a job is sent, and what the replies or messages amount
//! to. [`one_server`] has the policies for one server; those of clusters and quorums are beside the
//! stores.
//!
//! [`BackgroundConnection`]: connection::BackgroundConnection

pub(crate) mod connection;
pub(crate) mod jobs;
mod node_jobs;
pub(crate) mod one_server;
pub(crate) mod opening;
mod redisson;
mod shard;
mod subscription;
pub(crate) mod wakeups;
