//! The protocol between clients and servers as models, of which stateright visits every state
//! within a scope. They are written after `src/store/lua`, `src/store/quorum` and `src/local` but
//! do not run them, so a change to the rules there belongs here too. They show that the rules keep
//! the promises, and that the promises need the rules.

mod check;
mod hold;
mod network;
mod quorum;
mod tenure;
mod traces;
