//! What only a quorum must do.
