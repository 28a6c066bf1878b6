//! Locks on several independent servers.
