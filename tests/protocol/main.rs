//! The protocol between clients and servers as a model, of which stateright visits every state
//! within a scope. The model is written after `src/store/lua` and `src/store/quorum` and does not
//! run them: a change to the rules there belongs here too. It shows that the rules keep the
//! promises, and that the promises need the rules.

mod quorum;
