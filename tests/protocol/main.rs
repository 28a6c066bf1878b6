//! The protocol between clients and servers as models, of which stateright visits every state
//! within a scope. They are written after `src/store/lua` and `src/store/quorum` but do not
//! run them, so a change to the rules there belongs here too. They show that the rules keep
//! the promises, and that the promises need the rules.

mod check;
mod hold;
mod quorum;
mod traces;
